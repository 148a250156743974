"""Pages of a weight file that nothing reads any more, given back.

ONNX Runtime maps the file of a model's weights. A kernel that lays a matrix out its own way reads
it once, and its pages would count as this process's memory until somebody else needs them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)")
_MADV_DONTNEED = 4


def give_back_pages(folder: Path) -> None:
    """Let go of the pages that this process has mapped of files in ``folder``.

    What is read later (the rows of an embedding) comes back from the file. A mapping that was
    written to is left alone, since its pages are not the file's. Nothing happens where the system
    does not tell, or does not agree.
    """
    try:
        lines = SMAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in unwritten_mappings(lines, f"{folder.resolve()}/"):
        madvise(start, end - start, _MADV_DONTNEED)


def unwritten_mappings(lines: Iterable[str], prefix: str) -> Iterator[tuple[int, int]]:
    """First address and the one behind the last of each mapping, in the text of ``smaps``, of a
    file whose name begins with ``prefix``, none of whose pages the process has a copy of."""
    found = None
    for line in lines:
        if (mapping := _MAPPING.fullmatch(line)) is not None:
            start, end, name = mapping.groups()
            found = (int(start, 16), int(end, 16)) if name.startswith(prefix) else None
        elif found is not None and line.split() == ["Anonymous:", "0", "kB"]:
            yield found
