"""Rounds found afterwards: by hand, and the counts that must add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.replay import LookupReplay, RankedText, replay
from runtime.spec.statistics import OutcomeStatistics, Plan

K, W = 2, 3
HIT, JIT, LOOKUP, NONE = ProposalKind


class Scripted(OutcomeStatistics):
    """Statistics with a fixed fan-out, which write down what they observe."""

    def __init__(self, *counts: int) -> None:
        super().__init__(K, W)
        self.counts = counts
        self.seen: list[tuple[ProposalKind, int, int, bool]] = []

    def plan(self, kind: ProposalKind, num_drafted: int, width: int) -> Plan:  # noqa: ARG002
        return Plan(self.counts[-num_drafted - 1 :], 0.5)

    def observe(self, **round_: object) -> None:
        names = ("kind", "accepted", "rank", "hit")
        self.seen.append(tuple(round_[name] for name in names))  # type: ignore[arg-type]
        super().observe(**round_)  # type: ignore[arg-type]


def seen(ranks: list[int], counts: tuple[int, ...], fallback: Fallback, answer=None, prompt=()):
    tokens = answer or range(100, 100 + len(ranks))  # all different: nothing to copy
    statistics = Scripted(*counts)
    replay(RankedText(tuple(prompt), tuple(tokens), tuple(ranks)), statistics, W, fallback)
    return statistics.seen


def test_rounds_with_zero_drafts_after_a_miss_by_hand() -> None:
    #        none   hit: x x bonus   hit: - bonus
    ranks = [0, 0, 0, 1, 3, 9, 0, 0]
    assert seen(ranks, (3, 0, 2), Fallback.ZERO) == [
        (NONE, 0, 0, True),
        (HIT, 2, 1, True),
        (HIT, 0, 2, True),  # rank 3 in the whole list, 2 without the rejected first choice
        (HIT, 0, 8, False),
        (NONE, 0, 0, True),
    ]


def test_an_outcome_beyond_the_fan_out_of_its_place_is_a_miss() -> None:
    assert seen([0, 0, 5, 0], (3, 0, 3), Fallback.ZERO)[:2] == [
        (NONE, 0, 0, True),
        (HIT, 1, 4, False),
    ]


def test_rounds_drafted_just_in_time_have_drafts_after_a_miss() -> None:
    assert seen([7, 0, 2, 0, 0], (2, 2, 2), Fallback.JIT) == [
        (JIT, 0, 6, False),
        (JIT, 1, 1, True),
    ]


def test_without_branches_every_round_is_drafted_just_in_time() -> None:
    """This is ``sd``."""
    statistics = OutcomeStatistics(K, 1)
    replay(RankedText((), tuple(range(9)), (0,) * 9), statistics, 0, Fallback.JIT)
    assert statistics.num_rounds == {HIT: 0, JIT: 3, LOOKUP: 0, NONE: 0}


def test_lookups_are_judged_by_the_text_not_by_the_draft() -> None:
    prompt, answer = (1, 2, 3, 4, 1, 2), [3, 9, 9, 9]
    rounds = seen([5, 6, 0, 0], (0, 0, 0), Fallback.LOOKUP, answer, prompt)
    assert rounds[0] == (LOOKUP, 1, 6, False)  # 3 stands; 4 does not, 9 was the draft's rank 6


def test_lookups_that_find_nothing_draft_nothing() -> None:
    assert [kind for kind, *_ in seen([9, 9, 9, 9], (1, 1, 1), Fallback.LOOKUP)] == [NONE] * 4


@given(
    ranks=st.lists(st.integers(0, 5), max_size=40),
    vocab=st.integers(1, 4),
    fallback=st.sampled_from(Fallback),
    width=st.integers(0, 6),
    seed=st.randoms(use_true_random=False),
)
def test_rounds_cover_the_text_once(ranks, vocab, fallback, width, seed) -> None:
    answer = tuple(seed.randrange(vocab) for _ in ranks)
    statistics = OutcomeStatistics(3, 6)
    counted = []
    observe = statistics.observe
    statistics.observe = lambda **seen: counted.append(seen) or observe(**seen)  # type: ignore
    replay(RankedText((), answer, tuple(ranks)), statistics, width, fallback)
    emitted = sum(seen["accepted"] + 1 for seen in counted)
    assert emitted <= len(ranks) <= emitted + 3
    first_hits = [seen["kind"] is HIT for seen in counted[1:]]
    assert first_hits == [seen["hit"] for seen in counted[:-1]]


@pytest.mark.parametrize("ranks", [(), (0, 0), (-1,)])
def test_a_text_needs_one_rank_a_token(ranks) -> None:
    with pytest.raises(ValueError, match="one rank"):
        RankedText((), (5,), ranks)


@pytest.mark.parametrize(
    ("prompt", "answer", "agrees", "rounds"),
    [
        ([9], [1, 2, 3], [0, 0, 0], 3),
        ([9], [1, 2, 3, 4, 5], [1, 1, 1, 1, 1], 1),  # four guesses and one of the target
        ([8, 7, 1, 2, 3, 4, 5, 6, 8, 7], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0], 1),
        ([8, 7, 1, 9, 9, 9, 9, 9, 8, 7], [1, 2, 3, 4, 5], [1, 1, 1, 1, 1], 2),  # lookup goes first
        ([7, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5], [1, 1, 1, 1, 1], 1),  # one token is too little
        ([8, 7, 1, 2, 3, 4, 5, 6, 8, 7], [1, 2, 3, 4, 5], None, 1),
        ([9], [1, 2, 3], None, 3),
    ],
)
def test_rounds_with_lookups(prompt, answer, agrees, rounds) -> None:
    agreed = None if agrees is None else [bool(each) for each in agrees]
    assert LookupReplay(4).num_rounds(prompt, answer, agreed) == rounds


def test_what_copies_are_worth_is_learnt_from_text_to_text() -> None:
    replay = LookupReplay(4)
    before = replay.choice.copies.rate(2)
    assert replay.num_rounds([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1, 2]) == 1
    assert replay.choice.copies.rate(2) > before
