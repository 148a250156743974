"""Large pages: what a body allocates moves into them, and nothing else is touched."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runtime.backends.huge_pages as pages
from runtime.backends.huge_pages import huge_pages, spans_without

SIZE = 16 * 2**20
MAPPINGS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*?^AnonHugePages: +(\d+) kB", re.M | re.S)


def filled() -> mmap.mmap:
    """Private memory in pages of the usual size: numpy would ask for large ones by itself."""
    memory = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(range(256)) * (SIZE // 256)
    return memory


def large_bytes(memory: mmap.mmap) -> int:
    """How much lies in large pages, of the mappings that ``memory`` is part of."""
    at = np.frombuffer(memory, np.uint8).ctypes.data
    return sum(
        int(large) * 1024
        for first, end, large in MAPPINGS.findall(Path("/proc/self/smaps").read_text())
        if int(first, 16) < at + SIZE and at < int(end, 16)
    )


@pytest.fixture
def offered() -> None:
    if not pages._page_bytes():
        pytest.skip("this system has no large pages, or they are turned off")


@pytest.mark.usefixtures("offered")
def test_what_the_body_allocates_lies_in_large_pages() -> None:
    with huge_pages():
        memory = filled()
    if not large_bytes(memory):
        pytest.skip("this kernel moves no pages that are there already (Linux before 6.1)")
    assert memory[:] == bytes(range(256)) * (SIZE // 256)


@pytest.mark.usefixtures("offered")
def test_what_was_there_before_stays_as_it_is(monkeypatch) -> None:
    """A program that opens a bundle has memory of its own, maybe much: not ours to move."""
    advised: list[tuple[int, int]] = []

    def madvise(start: int, length: int, _advice: int) -> None:
        advised.append((start, start + length))

    monkeypatch.setattr(pages.ctypes, "CDLL", lambda _: SimpleNamespace(madvise=madvise))
    memory = filled()
    first = np.frombuffer(memory, np.uint8).ctypes.data
    with huge_pages():
        other = filled()
    assert advised
    assert not [span for span in advised if span[0] < first + SIZE and first < span[1]]
    assert other


@pytest.mark.parametrize("setting", ["always madvise [never]", "nonsense", None])
def test_nothing_happens_where_the_system_has_none(tmp_path, monkeypatch, setting) -> None:
    """Another system than Linux, or one whose administrator turned them off."""
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)
    if setting is not None:
        (tmp_path / "enabled").write_text(setting)
        (tmp_path / "hpage_pmd_size").write_text("2097152" if "never" in setting else "large")
    monkeypatch.setattr(pages.ctypes, "CDLL", None)  # called, it would raise
    with huge_pages():
        filled()


def test_an_error_of_the_body_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError), huge_pages():
        _ = 1 // 0


@st.composite
def spans(draw) -> list[tuple[int, int]]:
    edges = sorted(draw(st.sets(st.integers(0, 40), max_size=10)))
    return list(zip(edges[::2], edges[1::2], strict=False))


@given(spans(), spans())
def test_spans_without_others_hold_just_what_only_they_hold(ours, others) -> None:
    def cells(held) -> set[int]:
        return {cell for start, end in held for cell in range(start, end)}

    parts = spans_without(ours, others)
    assert cells(parts) == cells(ours) - cells(others)
    assert all(start < end for start, end in parts)
