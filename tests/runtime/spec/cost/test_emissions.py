"""Emissions of a chain: what is too rare to be told from rounding is left out, and made up for."""

from __future__ import annotations

import pytest

from runtime.spec.cost.laws import laws_of_acceptance
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.plan import RoundPlan


def test_shares_sum_to_one_without_the_rarest_emissions() -> None:
    """Left out and not made up for, they took tokens with them: fewer than one a round."""
    times = PairTimes.apart(ByTokens((1,), (0.010,)), ByTokens((1,), (0.001,)))
    plan = RoundPlan("ssd", 1, 4, Fallback.ZERO)
    found = predict(times, laws_of_acceptance(0.0, 2.0, 4), 5, plan)
    assert sum(each.share for each in found.emissions) == pytest.approx(1, abs=1e-12)
    assert found.tokens_round == pytest.approx(1, abs=1e-12)
