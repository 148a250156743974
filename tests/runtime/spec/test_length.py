"""Where a proposal ends, from the draft's confidence in its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost import ByTokens, PairTimes
from runtime.spec.length import Costs, Lengths, confidence

CPU = Costs(token_s=0.0055, verify_s=0.00065, draft_s=0.0004)
GPU = Costs(token_s=0.010, verify_s=0.00003, draft_s=0.0011)
sure = st.floats(0, 1)


def test_tokens_that_cost_nothing_are_all_proposed() -> None:
    lengths = Lengths(Costs(0.01, 0.0, 0.001))
    assert lengths.kept([0.9, 0.01, 0.0]) == 3


def test_a_proposal_ends_before_the_token_that_is_not_worth_verifying() -> None:
    """On a CPU a token that is accepted in 6 % of rounds costs twice what it brings."""
    assert Lengths(CPU).kept([0.05, 0.9]) == 0
    assert Lengths(CPU).kept([0.9, 0.05, 0.9]) == 1
    assert Lengths(GPU).kept([0.9, 0.05, 0.9]) == 3


def test_what_counts_is_that_all_before_it_are_accepted_too() -> None:
    assert Lengths(CPU).kept([0.45] * 8) < Lengths(CPU).kept([0.95] * 8) == 8


def test_drafting_another_token_has_to_pay_for_its_draft_as_well() -> None:
    slow = Lengths(Costs(0.010, 0.00003, 0.0052))
    assert slow.is_proposed(0.6, 0.6)
    assert not slow.goes_on(0.6, 0.6)
    assert Lengths(GPU).goes_on(0.6, 0.6)


@given(st.lists(sure, max_size=8), st.floats(1e-4, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_proposal_never_grows_where_verification_costs_more(
    confidences: list[float], token_s: float, cheap_s: float, dear_s: float
) -> None:
    cheap_s, dear_s = sorted((cheap_s, dear_s))
    cheap, dear = (Lengths(Costs(token_s, each, 0.0)) for each in (cheap_s, dear_s))
    assert dear.kept(confidences) <= cheap.kept(confidences) <= len(confidences)


def test_a_draft_that_thinks_too_well_of_itself_is_seen_through() -> None:
    lengths = Lengths(CPU)
    assert lengths.kept([0.8]) == 1
    for _ in range(100):
        lengths.observe([0.8], 0)
    assert lengths.kept([0.8]) == 0
    assert lengths.kept([0.4]) == 1  # a bin of its own


def test_a_draft_that_is_too_modest_is_trusted_more() -> None:
    lengths = Lengths(CPU)
    for _ in range(100):
        lengths.observe([0.1, 0.1], 2)
    assert lengths.kept([0.1, 0.1]) == 2
    assert lengths.goes_on(lengths.reach(1.0, 0.1), 0.1)


def test_tokens_that_are_left_out_are_tried_again_now_and_then() -> None:
    """A bin that was left out once was never judged again, so it was left out for good."""
    lengths = Lengths(CPU)
    for _ in range(300):
        lengths.observe([0.8], 0)
    tried = []
    for number in range(5000):
        count = lengths.kept([0.8])
        tried += [number] * count
        lengths.observe([0.8][:count], 0)
    assert 1 < len(tried[:-1]) < 0.05 * 5000
    for _ in range(3000):
        count = lengths.kept([0.8])
        lengths.observe([0.8][:count], count)
    assert lengths.kept([0.8]) == 1
    assert lengths.reach(1.0, 0.8) > 0.5


def test_drafting_on_is_tried_again_now_and_then() -> None:
    lengths = Lengths(CPU)
    for _ in range(300):
        lengths.observe([0.8, 0.8], 1)
    tried = sum(lengths.goes_on(0.8, 0.8) for _ in range(5000))
    assert tried > 0


def test_behind_a_rejection_nothing_is_learnt() -> None:
    lengths = Lengths(CPU)
    for _ in range(100):
        lengths.observe([0.9, 0.7, 0.7], 0)
    assert lengths.kept([0.7]) == 1


def test_new_texts_outweigh_old_ones() -> None:
    lengths = Lengths(CPU)
    for _ in range(5000):
        lengths.observe([0.8], 0)
    for _ in range(1500):
        lengths.observe([0.8], 1)
    assert lengths.reach(1.0, 0.8) > 0.8


@given(st.lists(st.tuples(st.lists(sure, max_size=5), st.integers(0, 5)), max_size=40), sure)
def test_rates_are_probabilities_whatever_was_seen(rounds, asked: float) -> None:
    lengths = Lengths(CPU)
    for confidences, accepted in rounds:
        lengths.observe(confidences, min(accepted, len(confidences)))
    assert 0.0 < lengths.reach(1.0, asked) < 1.0


def test_costs_are_those_of_the_step_times() -> None:
    times = PairTimes.apart(ByTokens((1, 5), (0.006, 0.008)), ByTokens((1,), (0.0004,)))
    assert Costs.of(times, 1, 4, 200.0) == Costs(0.005, pytest.approx(0.0005), 0.0004)
    flat = PairTimes.apart(ByTokens((1,), (0.006,)), ByTokens((1,), (0.0004,)))
    assert Costs.of(flat, 2, 4, 400.0) == Costs(0.005, 0.0, 0.0004)


# --- confidence ---


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0, 1.7]))
def test_confidence_is_the_probability_of_the_choice(seed: int, temperature: float) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 4, 50).astype(np.float32)
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    law = np.exp(scaled) / np.exp(scaled).sum()
    index = int(random.integers(50))
    assert confidence(logits, index, temperature) == pytest.approx(law[index], rel=1e-4)
    assert confidence(logits, None, temperature) == pytest.approx(law.max(), rel=1e-4)


def test_large_logits_do_not_overflow() -> None:
    assert confidence(np.array([3e4, -3e4], np.float32)) == 1.0
