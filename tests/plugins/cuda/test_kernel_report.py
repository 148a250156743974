"""Reading the compiler's report, and the table made of it."""

from __future__ import annotations

import pytest

from engines.errors import BackendError
from plugins.cuda.report import EntryReport, Line, as_table, parse_report

NVRTC_LOG = """\
ptxas info    : 8 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_100'
ptxas info    : Function properties for second
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 8 bytes cumulative stack size, 532 bytes smem
ptxas info    : Compile time = 119.224 ms
ptxas info    : Compiling entry function 'first' for 'sm_100'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 31 registers, used 0 barriers
\0\0"""
NVCC_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'only' for 'sm_80'
ptxas info    : Function properties for only
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 132 bytes smem, 416 bytes cmem[0]
"""


def test_registers_spills_and_shared_memory_are_read() -> None:
    assert parse_report(NVRTC_LOG) == (
        EntryReport("first", registers=31, spill_bytes=0, shared_bytes=0),
        EntryReport("second", registers=32, spill_bytes=24, shared_bytes=532),
    )
    assert parse_report(NVCC_LOG) == (EntryReport("only", 40, 0, 132),)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "no entry"),
        (NVCC_LOG.replace("spill stores", ""), "registers and spills of only"),
        (NVCC_LOG.replace("40 registers", ""), "registers and spills of only"),
    ],
)
def test_a_report_in_another_form_is_an_error(log: str, reason: str) -> None:
    """A figure that was not found must not become 0."""
    with pytest.raises(BackendError, match=reason):
        parse_report(log)


def test_the_table_has_a_line_a_use() -> None:
    line = Line("lookup", "9.0", ("first", "last"), "B=1", 4_800_000, 1e-6, 40, 1024, 132)
    heading, row = as_table([line]).splitlines()
    assert heading.split()[:2] == ["kernel", "use"]
    cells = [
        "lookup",
        "B=1",
        "9.0",
        "first",
        "+",
        "last",
        "4,800,000",
        "1",
        "us",
        "40",
        "1,024",
        "132",
    ]
    assert row.split() == cells
    assert row.endswith(" 132")
    assert len(heading) == len(row)
