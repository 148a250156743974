"""What the compiler says of a kernel, and what its memory traffic costs: the table of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engines.errors import BackendError

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One entry as ptxas assembled it.

    registers     a thread
    spill_bytes   of registers stored to and loaded from memory, a thread
    shared_bytes  of static shared memory, a block
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int


def parse_report(log: str) -> tuple[EntryReport, ...]:
    """The entries in the text that ``ptxas -v`` prints, by name.

    Raises BackendError where it does not say what it should.
    """
    parts = _ENTRY.split(log)[1:]
    found = [_entry(name, text) for name, text in zip(parts[::2], parts[1::2], strict=True)]
    if not found:
        raise BackendError("the compiler reports no entry; it must be run with ptxas -v")
    return tuple(sorted(found, key=lambda each: each.name))


def _entry(name: str, text: str) -> EntryReport:
    spills, registers = _SPILLS.search(text), _REGISTERS.search(text)
    if spills is None or registers is None:
        raise BackendError(f"the compiler does not report registers and spills of {name}")
    shared = _SHARED.search(text)
    return EntryReport(
        name,
        registers=int(registers[1]),
        spill_bytes=int(spills[1]) + int(spills[2]),
        shared_bytes=int(shared[1]) if shared else 0,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a use of a kernel on GPUs of one compute capability.

    entries    what is launched for it, in order; the figures of the compiler are the largest of
               theirs
    num_bytes  must cross the memory bus; floor_s is the time of that at 4.8 TB/s, in seconds
    """

    kernel: str
    capability: str
    entries: tuple[str, ...]
    label: str
    num_bytes: int
    floor_s: float
    registers: int
    spill_bytes: int
    shared_bytes: int


_HEADINGS = (
    *("kernel", "use", "cc", "entries"),
    *("bytes", "at 4.8 TB/s", "registers", "spills", "shared"),
)


def as_table(lines: Iterable[Line]) -> str:
    """The lines under headings, in columns: texts to the left, numbers to the right."""
    rows = [_HEADINGS] + [
        (
            line.kernel,
            line.label,
            line.capability,
            " + ".join(line.entries),
            f"{line.num_bytes:,}",
            f"{line.floor_s * 1e6:.2g} us",
            str(line.registers),
            f"{line.spill_bytes:,}",
            f"{line.shared_bytes:,}",
        )
        for line in lines
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_row(row, widths) for row in rows)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    num_texts = 4
    padded = [
        cell.ljust(width) if column < num_texts else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
