"""Pages of weight files that nothing reads any more."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from runtime.backends import mapped_weights
from runtime.backends.mapped_weights import give_back_pages, unwritten_mappings

SMAPS = """\
7f00-7f10 rw-p 00001000 fe:00 123                    /engines/target/model.onnx.data
Size:                 64 kB
Anonymous:             0 kB
7f10-7f20 rw-p 00002000 fe:00 123                    /engines/target/model.onnx.data
Anonymous:             4 kB
7f20-7f30 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f30-7f40 r--p 00002000 fe:00 124                    /engines/draft/model.onnx.data
Anonymous:             0 kB
VmFlags: rd mr
7f50-7f60 r--p 00002000 fe:00 123                    /engines/target/model.onnx.data
Anonymous:             0 kB
"""


def test_only_files_of_the_folder_that_were_not_written_to() -> None:
    found = list(unwritten_mappings(SMAPS.splitlines(), "/engines/target/"))
    assert found == [(0x7F00, 0x7F10), (0x7F50, 0x7F60)]


def resident(path: Path) -> int:
    """kB of the mappings of ``path`` that are in memory for this process."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_pages_go_and_come_back_and_what_was_written_stays(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    (tmp_path / "read").write_bytes(content)
    (tmp_path / "written").write_bytes(content)
    with (tmp_path / "read").open("rb") as read, (tmp_path / "written").open("rb") as written:
        kept = mmap.mmap(read.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        own = mmap.mmap(written.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        assert kept[:] == own[:] == content
        own[5] = 77
        assert resident(tmp_path / "read") == 1024
        give_back_pages(tmp_path)
        assert resident(tmp_path / "read") == 0
        assert resident(tmp_path / "written") == 1024
        assert kept[:] == content
        assert own[5] == 77


def test_a_system_that_does_not_tell_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_weights, "SMAPS", tmp_path / "missing")
    give_back_pages(tmp_path)
