"""``bench overlap``: figures from a timeline whose every millisecond is known."""

from __future__ import annotations

import pytest

from engines.errors import UsageError
from runtime.bench.overlap import figures_of, gaps_of, turns_of
from runtime.stats import Stats
from runtime.trace.timeline import Timeline

STATS = Stats(
    num_tokens=5,
    num_rounds=4,
    num_emitted=6,
    num_hits=2,
    histogram=(2, 2),
    prompt_s=0.0,
    decode_s=0.1,
    verify_s=0.0,
    draft_s=0.0,
    num_hits_after_hit=1,
    num_rounds_after_hit=2,
    num_hits_after_miss=1,
    num_rounds_after_miss=1,
)


def timeline() -> Timeline:
    """A warm-up of one round; then a text of four: hit, miss, hit. Each verification takes 10 ms,
    the gaps are 1, 5 and 2 ms; the draft works 9 ms of each verification and 4 ms of the long gap.
    """
    found = Timeline()
    found.span("target", "verify", -1.0, -0.9)
    found.span("draft", "prepare", -1.0, -0.8)
    start = 0.0
    for number, (gap, kind) in enumerate(((1, "hit"), (5, "miss"), (2, "hit"), (0, "")), start=2):
        found.span("target", "verify", start, start + 0.010)
        end = start + (0.014 if kind == "miss" else 0.010)
        found.span("draft", "prepare", start + 0.001, end)
        found.span("draft", "adopt", end, end + 0.0001)
        start += 0.010 + gap / 1e3
        if kind:
            found.moment(kind, start, round=number + 1, row=0)
    return found


def test_a_turn_is_a_verification_and_the_wait_behind_it() -> None:
    turns = turns_of(timeline(), 1)
    assert [turn.hit for turn in turns] == [True, False, True]
    assert [turn.verify_s for turn in turns] == pytest.approx([0.010] * 3)
    assert [turn.gap_s for turn in turns] == pytest.approx([0.001, 0.005, 0.002])


def test_a_round_of_several_rows_is_all_hit_only_if_all_of_them_hit() -> None:
    found = timeline()
    found.moment("miss", 0.0, round=3, row=1)
    found.moment("hit", 0.0, round=5, row=1)
    assert [turn.hit for turn in turns_of(found, 1)] == [False, False, True]


def test_hidden_and_exposed_drafting_and_the_gaps_after_hits_and_misses() -> None:
    figures = figures_of(timeline(), 1, [STATS], num_draft=1, num_branches=3, fallback="zero")
    assert figures.hidden_ms == pytest.approx(36)
    assert figures.exposed_ms == pytest.approx(4)
    assert figures.hidden_share == pytest.approx(0.9)
    assert figures.exposed_share_of_rounds == pytest.approx(0.04)
    assert figures.hit_rate == pytest.approx(2 / 3)
    assert figures.acceptance_length == pytest.approx(1.5)
    assert figures.prepare_ms.num == 4
    assert figures.after_hit is not None
    assert figures.after_miss is not None
    assert figures.after_hit.gap_share.median == pytest.approx(0.15)
    assert figures.after_miss.gap_ms.median == pytest.approx(5)
    assert "15.0%" in figures.as_text()


def test_no_round_of_a_kind_is_no_figure() -> None:
    assert gaps_of([], hit=True) is None


def test_a_timeline_that_lost_records_is_refused() -> None:
    """Its verifications could not be counted off against its rounds."""
    found = timeline()
    found.num_dropped = 1
    with pytest.raises(UsageError, match="fewer tokens"):
        turns_of(found)
