"""Counting: what a stop string takes back, and seconds that several requests share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.stats import NO_FIGURES, SourceCounts, Tally, covered, together
from runtime.workers import mailbox as mail
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
        tally.round("ssd", Kind.HIT, None, 4, accepted, emitted)
        expected += min(accepted, emitted, left)
        left -= min(emitted, left)
    tally.cut(kept)
    tally.cut(kept)
    assert (tally.num_emitted, tally.num_accepted) == (kept, expected)


def test_nothing_prepared_has_no_counts_of_hits() -> None:
    """They said of plain speculative decoding that every round was just in time."""
    tally = Tally(4)
    for _ in range(3):
        tally.round("sd", Kind.JIT, None, 4, 2, 3)
    stats = tally.stats(NO_FIGURES, NO_FIGURES, prepares=False)
    assert stats.num_hits is stats.hit_rate is None
    assert (stats.num_jit, stats.num_rounds_after_miss, stats.num_rounds) == (0, 0, 3)
    assert tally.stats(NO_FIGURES, NO_FIGURES, prepares=True).num_hits == 0


def test_every_round_counts_for_the_source_of_its_drafts() -> None:
    """In every mode; a lookup in the place of a hit is a lookup, and its outcome had been prepared
    all the same. An empty proposal came from nowhere, whoever was asked."""
    tally, other = Tally(4), Tally(4)
    tally.round("sd", Kind.LOOKUP, None, 3, 2, 3)
    tally.round("ssd", Kind.NONE, None, 0, 0, 1)
    tally.round("ssd", Kind.OVERRULED, Kind.NONE, 4, 4, 5)
    tally.round("ssd", Kind.HIT, Kind.OVERRULED, 4, 0, 1)
    other.round("ssd", Kind.HIT, Kind.HIT, 0, 0, 1)
    tally.add(other)
    stats = tally.stats(NO_FIGURES, NO_FIGURES, prepares=True)
    assert stats.sources == {
        "hit": SourceCounts(1, 4, 0),
        "lookup": SourceCounts(2, 7, 6),
        "none": SourceCounts(2, 0, 0),
    }
    assert (stats.num_hits, stats.num_hits_after_hit, stats.num_hits_after_miss) == (3, 1, 2)
    assert stats.num_lookup == 1  # of ssd alone


def test_a_text_of_one_round_has_no_hit_rate() -> None:
    """Its only outcome was never looked up, and it was said to have missed: 0 %."""
    tally = Tally(4)
    tally.round("ssd", Kind.NONE, None, 0, 0, 1)
    stats = tally.stats(NO_FIGURES, NO_FIGURES, prepares=True)
    assert (stats.num_hits, stats.hit_rate) == (0, None)


def test_rounds_are_counted_by_mode_and_hits_only_of_those_that_prepare() -> None:
    """A policy mixes them within one text."""
    tally = Tally(4)
    tally.round("ar", Kind.NONE, None, 0, 0, 1)
    tally.round("sd", Kind.JIT, None, 4, 2, 3)
    tally.round("ssd", Kind.NONE, None, 0, 0, 1)
    tally.round("ssd", Kind.JIT, Kind.NONE, 4, 1, 2)
    tally.round("ssd", Kind.HIT, Kind.JIT, 4, 4, 5)
    stats = tally.stats(NO_FIGURES, NO_FIGURES, prepares=False)
    assert stats.rounds_by_mode == {"ar": 1, "sd": 1, "ssd": 3}
    assert (stats.num_hits, stats.num_rounds_after_miss, stats.num_jit) == (1, 2, 1)
    total = Tally(4)
    total.add(tally)
    total.add(tally)
    assert total.stats(NO_FIGURES, NO_FIGURES, prepares=False).rounds_by_mode["ssd"] == 6


def test_overhead_is_what_neither_engine_was_waited_for() -> None:
    """One of 20 ms a block was hidden in the sum."""
    tally = Tally(4)
    tally.decode = (10.0, 11.0)
    end = list(NO_FIGURES)
    end[mail.VERIFY_S], end[mail.DRAFT_S], end[mail.EXPOSED_S] = 0.6, 0.5, 0.1
    stats = tally.stats(NO_FIGURES, end, prepares=True)
    assert stats.overhead_s == pytest.approx(0.3)
    assert stats.hidden_s == pytest.approx(0.4)
    assert together([stats, stats]).overhead_s == pytest.approx(0.3)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)))
def test_overlaps_are_covered_once(intervals: list[tuple[int, int]]) -> None:
    points = {i for first, last in intervals for i in range(first, last)}
    assert covered(intervals) == len(points)
