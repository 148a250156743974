"""Large pages for weights, which every step reads from end to end.

A step of the default target reads 150 MB, which are 37,000 pages of the usual 4 KiB; the processor
looks up where each of them lies, and prefetches across none of their borders. In pages of 2 MiB a
step takes a tenth less time or better. Linux gives such pages to who asks for them; ONNX Runtime
does not ask, so it is done for it, after it has loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Span = tuple[int, int]
"""Addresses from the first to one behind the last."""

MAPS = Path("/proc/self/maps")
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_ADVICE = (14, 25)
"""MADV_HUGEPAGE, for pages to come, and MADV_COLLAPSE (Linux 6.1), for those that are there."""


@contextmanager
def huge_pages() -> Iterator[None]:
    """Move what the body allocates, and has not freed at its end, into large pages.

    Costs half a second of processor time for the default target, and no memory. Nothing happens
    where the system has no such pages or its administrator turned them off, and none of what the
    system refuses is an error.
    """
    size = _page_bytes()
    before = _private_memory() if size else []
    yield
    if not size:
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for first, end in spans_without(_private_memory(), before):
        start = -(-first // size) * size
        length = (end - start) // size * size
        if length > 0:
            for advice in _ADVICE:
                madvise(start, length, advice)


def spans_without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The parts of ``spans`` that no span of ``others`` holds; both in order, without overlaps."""
    parts: list[Span] = []
    for start, end in spans:
        for first, last in others:
            if first < end and start < last:
                if start < first:
                    parts.append((start, first))
                start = last
        if start < end:
            parts.append((start, end))
    return parts


def _page_bytes() -> int:
    """How large a large page is; 0 where there are none for us."""
    try:
        if "[never]" in (SETTINGS / "enabled").read_text(encoding="ascii"):
            return 0
        return int((SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _private_memory() -> list[Span]:
    """Where this process has memory that is written to, its own and no file's, stacks aside."""
    try:
        lines = MAPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    spans = []
    for line in lines:
        addresses, access, _offset, _device, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            start, end = (int(part, 16) for part in addresses.split("-"))
            spans.append((start, end))
    return spans
