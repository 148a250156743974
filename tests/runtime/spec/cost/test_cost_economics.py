"""Break-even acceptance, and devices that earn their keep or do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost.economics import (
    HIGHEST,
    STEPS,
    Devices,
    break_even,
    least_acceptance,
)
from runtime.spec.cost.laws import laws_of_acceptance
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.search import Space, best_of_mode
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan

SPACE = Space((1, 2, 4, 8), (1, 4, 16), (Fallback.ZERO, Fallback.JIT))


def pair(verify_s: float, draft_s: float) -> PairTimes:
    return PairTimes.apart(ByTokens((1,), (verify_s,)), ByTokens((1,), (draft_s,)))


@given(st.floats(0.001, HIGHEST))
def test_the_place_where_it_begins_to_pay_is_found(place: float) -> None:
    found = least_acceptance(lambda acceptance: acceptance >= place)
    assert found == pytest.approx(place, abs=HIGHEST / STEPS / 2**11)


def test_a_gain_that_is_lost_again_is_not_promised() -> None:
    found = least_acceptance(lambda acceptance: 0.1 < acceptance < 0.2 or acceptance > 0.6)
    assert found == pytest.approx(0.6, abs=0.001)


def test_always_and_never() -> None:
    assert least_acceptance(lambda acceptance: acceptance >= 0) == 0.0
    assert least_acceptance(lambda acceptance: acceptance > 1) is None


def test_where_synchronous_drafting_breaks_even_by_hand() -> None:
    """One drafted token at most: 1 + a tokens in v + d against 1 in v, so a = d / v."""
    times = pair(0.010, 0.003)
    found = break_even(times, laws_of_acceptance, 1, Space((1,), (1,)), Devices())
    assert found.sd == pytest.approx(0.3, abs=0.001)


def test_at_break_even_modes_are_equal() -> None:
    times = pair(0.010, 0.004)
    found = break_even(times, laws_of_acceptance, 1, SPACE, Devices(4, 1))
    plain = predict(times, laws_of_acceptance(0.5), 1, PLAIN).tokens_s
    for mode, at in (("sd", found.sd), ("ssd", found.ssd)):
        assert at is not None
        fastest = best_of_mode(times, laws_of_acceptance(at), 1, mode, SPACE)
        assert fastest.tokens_s == pytest.approx(plain, rel=0.01)


def test_a_draft_that_takes_no_time_needs_no_device_of_its_own() -> None:
    found = break_even(pair(0.010, 1e-6), laws_of_acceptance, 1, SPACE, Devices(1, 1))
    assert found.each is None
    assert found.sd is not None
    assert found.sd < 0.01


def test_a_slow_draft_pays_for_its_device_from_some_acceptance_on() -> None:
    times = pair(0.015, 0.0015)
    found = break_even(times, laws_of_acceptance, 1, SPACE, Devices(4, 1))
    assert found.each is not None
    for at, pays in ((found.each - 0.02, False), (found.each + 0.02, True)):
        laws = laws_of_acceptance(at)
        plain, sd, ssd = (
            Devices(4, 1).rate_each(best_of_mode(times, laws, 1, mode, SPACE))
            for mode in ("ar", "sd", "ssd")
        )
        assert (ssd > max(plain, sd)) is pays


def test_only_ssd_occupies_the_drafts_device() -> None:
    devices = Devices(4, 1)
    assert [devices.used_by(mode) for mode in ("ar", "sd", "ssd")] == [4, 4, 5]
    times, laws = pair(0.010, 0.001), laws_of_acceptance(0.8)
    found = predict(times, laws, 1, RoundPlan("ssd", 4, 8))
    assert devices.rate_each(found) == pytest.approx(found.tokens_s / 5)
