"""Counting: what a stop string takes back, and seconds that several requests share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.stats import NO_FIGURES, Tally, covered
from runtime.workers.mailbox import Kind

BLOCK = st.integers(0, 4).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k + 1)))


@given(st.lists(BLOCK, max_size=8), st.data())
def test_a_cut_leaves_what_shorter_blocks_would_have_counted(
    blocks: list[tuple[int, int]], data: st.DataObject
) -> None:
    total = sum(emitted for _, emitted in blocks)
    left = kept = data.draw(st.integers(0, total))
    tally, expected = Tally(4), 0
    for accepted, emitted in blocks:
        tally.round(Kind.HIT, None, 4, accepted, emitted)
        expected += min(accepted, emitted, left)
        left -= min(emitted, left)
    tally.cut(kept)
    tally.cut(kept)
    assert (tally.num_emitted, tally.num_accepted) == (kept, expected)


def test_nothing_prepared_has_no_counts_of_hits() -> None:
    """They said of plain speculative decoding that every round was just in time."""
    tally = Tally(4)
    for before in (None, Kind.JIT, Kind.JIT):
        tally.round(Kind.JIT, before, 4, 2, 3)
    stats = tally.stats(NO_FIGURES, NO_FIGURES, prepares=False)
    assert stats.num_hits is stats.hit_rate is None
    assert (stats.num_jit, stats.num_rounds_after_miss, stats.num_rounds) == (0, 0, 3)
    assert tally.stats(NO_FIGURES, NO_FIGURES, prepares=True).num_jit == 3


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)))
def test_overlaps_are_covered_once(intervals: list[tuple[int, int]]) -> None:
    points = {i for first, last in intervals for i in range(first, last)}
    assert covered(intervals) == len(points)
