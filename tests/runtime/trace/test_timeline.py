"""Hidden and exposed time of a lane against a brute-force count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.trace.timeline import Overlap, Span, Timeline, overlap

DRAFTING = {
    "of": "draft",
    "labels": ["prepare"],
    "behind": "target",
    "behind_labels": ["verify"],
}
intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)


@given(draft=intervals, target=intervals)
def test_hidden_is_the_time_in_which_both_lanes_work(
    draft: list[tuple[int, int]], target: list[tuple[int, int]]
) -> None:
    spans = [Span("draft", "prepare", at, at + length) for at, length in draft]
    spans += [Span("target", "verify", at, at + length) for at, length in target]

    def works(intervals: list[tuple[int, int]], tick: int) -> bool:
        return any(at <= tick < at + length for at, length in intervals)

    ticks = range(60)
    hidden = sum(works(draft, tick) and works(target, tick) for tick in ticks)
    exposed = sum(works(draft, tick) and not works(target, tick) for tick in ticks)
    found = overlap(spans, **DRAFTING)
    assert found == Overlap(pytest.approx(hidden), pytest.approx(exposed))


def test_only_the_wanted_labels_count() -> None:
    spans = [Span("draft", "prompt", 0, 5), Span("draft", "prepare", 5, 7)]
    spans.append(Span("target", "prompt", 0, 9))
    found = overlap(spans, **DRAFTING)
    assert found == Overlap(0.0, 2.0)
    assert found.hidden_share == 0.0
    assert overlap([], **DRAFTING).hidden_share == 0.0


def test_a_long_run_keeps_a_bounded_number_of_records() -> None:
    timeline = Timeline(max_records=2)
    for at in range(5):
        timeline.span("target", "verify", at, at + 1)
        timeline.moment("hit", at, round=at)
    assert (len(timeline.spans), len(timeline.moments), timeline.num_dropped) == (2, 2, 6)
