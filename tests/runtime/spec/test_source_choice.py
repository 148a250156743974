"""When a lookup goes first, what is learnt of it, and what lookups alone would have yielded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.fallback import ProposalKind
from runtime.spec.lookup import (
    LEAST_REACH,
    CopyRates,
    Looked,
    LookupChain,
    SourceChoice,
    num_common,
)
from runtime.spec.ngram import LONGEST, NO_MATCH, Evidence, Match, NgramIndex

K = 4
SHORT, LONG = Match(1, (1, 2, 3, 4)), Match(LONGEST, (1, 2, 3, 4))


def taught(match: Match, is_right: bool, *, rounds: int = 2000) -> SourceChoice:
    """Copies behind such a match were always right, or always wrong."""
    choice = SourceChoice(K)
    for _ in range(rounds):
        choice.see_copy(match, [*match.tokens, 9] if is_right else [0])
    return choice


@given(
    num_matched=st.integers(0, 40),
    num_tokens=st.integers(0, 9),
    floor=st.floats(0, 1),
)
def test_the_worth_of_a_copy_is_the_sum_of_what_is_reached(num_matched, num_tokens, floor):
    """By the formula, and no kept token is reached more seldom than the floor says."""
    rates = CopyRates()
    reached, expected = [1.0], []
    for place in range(num_tokens if num_matched else 0):
        reached.append(reached[-1] * rates.rate(num_matched + place))
        expected.append(reached[-1])
    count, worth = rates.worth(num_matched, num_tokens, floor)
    assert all(each >= floor for each in expected[:count])
    assert count == len(expected) or expected[count] < floor
    assert worth == pytest.approx(sum(expected[:count]))


def test_longer_matches_promise_more_from_the_start():
    rates = CopyRates()
    found = [rates.rate(length) for length in range(1, LONGEST + 3)]
    assert found == sorted(found)
    assert found[0] < 0.3 < 0.9 < found[-1]


def test_a_copy_is_proposed_where_it_promises_more_than_the_model():
    choice = SourceChoice(K)
    count, worth = choice.copies.worth(LONG.length, K, LEAST_REACH)
    assert (count, choice.choose(LONG, worth, LEAST_REACH)) == (K, LONG.tokens)
    assert choice.choose(LONG, worth + 0.01, LEAST_REACH) == ()
    assert choice.choose(NO_MATCH, 0.0, 0.0) == ()


def test_a_weak_copy_is_cut_where_it_is_hardly_reached():
    """Each further row makes a verification longer; the fourth token behind one that matched is
    accepted once in twelve rounds."""
    choice = SourceChoice(K)
    assert choice.choose(SHORT, 0.0, 0.2) == (1,)
    assert choice.choose(SHORT, 0.0, 0.1) == (1, 2)
    assert choice.choose(SHORT, 0.0, 0.0) == SHORT.tokens
    assert choice.choose(SHORT, 0.0, 0.3) == ()


def test_what_was_seen_decides():
    """A text that copies nothing must go back to its model, and one that copies must stay."""
    model = SourceChoice(K).model_worth(ProposalKind.JIT, K)
    assert taught(SHORT, True).choose(SHORT, model, LEAST_REACH) == SHORT.tokens
    assert taught(LONG, False).choose(LONG, 0.0, LEAST_REACH) == ()
    bad = SourceChoice(K)
    for _ in range(500):
        bad.see_model(ProposalKind.JIT, K, 0)
    assert bad.model_worth(ProposalKind.JIT, K) < 0.2 < model
    assert bad.model_worth(ProposalKind.HIT, K) == SourceChoice(K).model_worth(ProposalKind.HIT, K)


def test_a_copy_that_was_not_proposed_teaches_as_far_as_the_text_went():
    """Where the model's tokens were verified, those behind the last emitted one are unknown: they
    are neither right nor wrong."""
    choice = SourceChoice(K)
    before = [choice.copies.rate(length) for length in range(1, 6)]
    choice.see_copy(SHORT, [1, 2])  # two of four known, both right
    after = [choice.copies.rate(length) for length in range(1, 6)]
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert after[2:] == before[2:]
    choice.see_copy(SHORT, [1, 9, 3, 4])  # what stands behind a wrong token says nothing
    assert choice.copies.rate(2) < after[1]
    assert [choice.copies.rate(length) for length in range(3, 6)] == before[2:]


def test_a_match_whose_places_disagree_promises_less_and_is_learnt_of_apart():
    """Pooled, the many disputed matches of two tokens hid what one that stood alone is worth."""
    length, tokens = 2, (1, 2, 3, 4)
    matches = {evidence: Match(length, tokens, evidence) for evidence in Evidence}
    choice = SourceChoice(K)
    _, one = choice.copies.worth(length, K, 0.0)
    assert choice.choose(matches[Evidence.ONE], one, 0.0) == tokens
    assert choice.choose(matches[Evidence.DISPUTED], one / 2, 0.0) == ()
    for _ in range(500):
        choice.see_copy(matches[Evidence.DISPUTED], [0])
        choice.see_copy(matches[Evidence.AGREED], [*tokens, 9])
    assert choice.copies.worth(length, K, 0.0) == (K, one)
    assert choice.choose(matches[Evidence.DISPUTED], 0.2, 0.0) == ()
    assert choice.choose(matches[Evidence.AGREED], 2 * one, 0.0) == tokens


def test_drafts_that_a_round_waits_for_are_worth_less():
    choice = SourceChoice(K, 0.5)
    at_once = choice.model_worth(ProposalKind.JIT, K)
    assert at_once == pytest.approx(0.5 + 0.25 + 0.125 + 0.0625)
    assert choice.model_worth(ProposalKind.JIT, K, waits=True) < at_once
    assert choice.model_worth(ProposalKind.JIT, 1) == pytest.approx(0.5)


def test_common_beginnings():
    assert num_common((1, 2, 3), (1, 2, 4)) == 2
    assert num_common((), (1,)) == 0
    assert num_common((1, 2), (1, 2, 3)) == 2


def lookup_rounds(prompt: list[int], answer: list[int], num_draft: int) -> list[Looked]:
    """The definition: rounds of K copied tokens, each followed by one of the target's."""
    found, place = [], 0
    while True:
        match = NgramIndex([*prompt, *answer[:place]]).find(num_draft)
        right = num_common(match.tokens, answer[place:])
        if place + right >= len(answer):
            return found
        found.append(Looked(match.length, len(match.tokens), right))
        place += right + 1


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    answer=st.lists(st.integers(0, 2), max_size=40),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=40),
    num_draft=st.integers(1, 5),
)
def test_the_chain_is_the_rounds_of_lookups_alone_whatever_rounds_there_are(
    prompt, answer, cuts, num_draft
):
    chain, found, place = LookupChain(prompt, num_draft), [], 0
    while place < len(answer):
        step = cuts[place % len(cuts)]
        found += chain.settled(answer[place : place + step])
        place += step
    assert found == lookup_rounds(prompt, answer, num_draft)


def test_the_chain_takes_up_what_was_really_looked_up():
    """A real lookup counts as it was: with its own length, and nothing is counted twice."""
    chain = LookupChain([1, 2, 3, 4, 1, 2], 3)
    assert chain.settled([3]) == ()  # the first of three expected tokens
    assert chain.judged(2, 1, [4, 9]) == (Looked(3, 2, 1),)
    assert chain.settled([9]) == (Looked(0, 0, 0),)
