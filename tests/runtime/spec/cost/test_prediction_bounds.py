"""Predictions of any pair against what can never be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.spec.cost.laws import KindLaw, Laws, laws_of_acceptance
from runtime.spec.cost.prediction import predict
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.pair_costs import CURVED, JIT, LOOKUP, MIXED, ZERO, constant, speed, ssd

laws_of_any_pair = st.builds(
    laws_of_acceptance, st.floats(0.0, 0.98), st.floats(0.3, 3.0), st.integers(1, 12)
)
plans = st.builds(ssd, st.integers(1, 8), st.integers(1, 40), st.sampled_from((ZERO, JIT)))


@given(st.floats(0.0, 0.97), st.floats(0.0, 0.02), st.integers(1, 20), plans)
def test_more_acceptance_never_predicts_less(acceptance, more, batch, plan) -> None:
    """Of sd, and of what a round of ssd emits: how often it hits may fall, since of outcomes with
    many accepted tokens there are more to tell apart."""
    low, high = laws_of_acceptance(acceptance), laws_of_acceptance(acceptance + more)
    synchronous = RoundPlan("sd", plan.num_draft)
    free = constant(0.010, 0.0)
    assert speed(free, high, synchronous, batch) >= speed(free, low, synchronous, batch) - 1e-9
    for kind in ProposalKind:
        assert high.kinds[kind].tokens(plan.num_draft) >= low.kinds[kind].tokens(plan.num_draft)
    # Where every outcome is prepared nothing is left that could fall.
    certain = replace_ranks(low, 1.0), replace_ranks(high, 1.0)
    wide = replace(plan, num_branches=plan.num_draft + 1)
    before, after = (speed(free, laws, wide, batch) for laws in certain)
    assert after >= before - 1e-9


def replace_ranks(laws: Laws, first: float) -> Laws:
    """The bonus token is the draft's first candidate with that probability, else none of them."""
    ranks = np.array([first])
    return Laws({kind: KindLaw(law.accept, ranks, ranks) for kind, law in laws.kinds.items()})


@given(laws_of_any_pair, st.integers(1, 20), plans, st.integers(1, 20))
def test_more_branches_never_hurt_where_they_are_free(laws, batch, plan, more) -> None:
    times = constant(0.010, 0.0003)
    wider = replace(plan, num_branches=plan.num_branches + more)
    assert speed(times, laws, wider, batch) >= speed(times, laws, plan, batch) * (1 - 1e-6)


@given(laws_of_any_pair, st.integers(1, 20), plans)
def test_a_free_draft_never_loses_to_plain_decoding(laws, batch, plan) -> None:
    """Where verification costs the same whatever its width, too."""
    times = constant(0.010, 0.0)
    plain = speed(times, laws, PLAIN, batch)
    assert speed(times, laws, RoundPlan("sd", plan.num_draft), batch) >= plain * (1 - 1e-9)
    if plan.fallback is ZERO or batch == 1:
        assert speed(times, laws, plan, batch) >= plain * (1 - 1e-9)


@given(laws_of_any_pair, st.integers(1, 20), plans, st.floats(1.0, 3.0))
def test_slower_engines_never_predict_more(laws, batch, plan, factor) -> None:
    times = constant(0.010, 0.001, 0.0001)
    for slower in (
        constant(0.010 * factor, 0.001, 0.0001),
        constant(0.010, 0.001 * factor, 0.0001),
        constant(0.010, 0.001, 0.0001 * factor),
    ):
        assert speed(slower, laws, plan, batch) <= speed(times, laws, plan, batch) * (1 + 1e-9)


@settings(max_examples=60)
@given(
    laws_of_any_pair,
    st.integers(1, 20),
    st.builds(ssd, st.integers(1, 8), st.integers(1, 40), st.sampled_from(Fallback)),
    st.floats(0, 1),
)
def test_a_prediction_agrees_with_itself(laws, batch, plan, share) -> None:
    laws = Laws(laws.kinds, share)
    found = predict(CURVED, laws, batch, plan)
    assert sum(each.share for each in found.emissions) == pytest.approx(1)
    assert 1 - 1e-9 <= found.tokens_round <= plan.num_draft + 1 + 1e-9
    assert found.hit_rate is not None
    assert -1e-9 <= found.hit_rate <= 1 + 1e-9
    assert found.token_s == pytest.approx(batch / found.tokens_s)
    quantiles = [found.latency_s(q) for q in (0.1, 0.5, 0.9, 0.99, 1.0)]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] == found.arrival_s(1.0) == max(e.seconds for e in found.emissions)


def test_copies_are_never_made_where_nothing_repeats() -> None:
    laws = Laws(MIXED.kinds, lookup_share=0.0)
    zero, lookup = (predict(CURVED, laws, 4, ssd(3, 6, each)) for each in (ZERO, LOOKUP))
    assert replace(lookup, plan=zero.plan) == zero
