"""P1: a controller never costs more than 3 %, whatever the pair and the text."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.controller import Choices
from runtime.spec.controller.choices import longest_round_s
from runtime.spec.controller.credit import NUM_ROUNDS, SHARE
from runtime.spec.controller.pace import GAP_S
from runtime.spec.controller.policy import FIRST_PAUSE, TRIAL_ROUNDS
from runtime.spec.cost import ByTokens, Grid, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport
from tests.helpers.controllers import BOTH, CPU, GPU, SD, SLOW_DRAFT, controller, far
from tests.helpers.scripted_pair import ScriptedPair


@pytest.mark.parametrize("prior", [0.05, 0.5, 0.95])
@pytest.mark.parametrize(
    ("times", "choices"), [(CPU, SD), (CPU, BOTH), (GPU, BOTH), (SLOW_DRAFT, BOTH)]
)
def test_a_draft_that_never_agrees_costs_at_most_three_percent(times, choices, prior) -> None:
    ride = ScriptedPair(times, lambda _: 0.0, lambda _: 0.0).run(
        controller(times, choices, prior), 3000
    )
    assert ride.against_plain() >= 0.97
    assert set(ride.modes) > {"ar"}  # it was tried again


@pytest.mark.parametrize("prior", [0.05, 0.5, 0.95])
def test_a_draft_as_slow_as_the_target_is_off_within_a_few_rounds(prior) -> None:
    ride = ScriptedPair(SLOW_DRAFT, lambda _: 0.6).run(controller(SLOW_DRAFT, prior=prior), 2000)
    first = FIRST_PAUSE + 2 * TRIAL_ROUNDS
    assert set(ride.modes[first : first + FIRST_PAUSE]) == {"ar"}
    assert ride.against_plain() >= 0.97
    assert ride.against_plain(first) >= 0.97


def test_a_slow_draft_that_was_measured_as_a_fast_one_is_found_out() -> None:
    """Measurements under load chose wrongly, for as long as the bundle was open."""
    ride = ScriptedPair(SLOW_DRAFT, lambda _: 0.6).run(controller(CPU, prior=0.9), 2000)
    assert "sd" in ride.modes[:10]
    assert ride.modes[:40].count("sd") < 20
    assert ride.modes[-200:].count("sd") < 20
    assert ride.against_plain() >= 0.97


def test_a_plain_step_that_was_measured_too_slow_is_found_out() -> None:
    """Speculation then looked good against a baseline that nobody had seen."""
    slow = PairTimes.apart(ByTokens((1,), (0.0200,)), CPU.draft)
    ride = ScriptedPair(CPU, lambda _: 0.0).run(controller(slow), 2000)
    assert ride.against_plain() >= 0.97


@given(
    verify=st.floats(0.5, 3.0),
    draft=st.floats(0.2, 20.0),
    seed=st.integers(0, 2**32 - 1),
    phases=st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.0, 0.3, 0.7, 1.0]))),
    choices=st.sampled_from([SD, BOTH]),
    lag=st.integers(0, 2),
    rounds_behind=st.integers(0, 3),
    batch=st.sampled_from([1, 3]),
)
def test_every_stretch_keeps_the_bound_whatever_pair_and_text(
    verify, draft, seed, phases, choices, lag, rounds_behind, batch
) -> None:
    """Calibration may be wrong in all but a plain step, and the text may turn at any time."""
    plain_s = CPU.target.seconds(1, 1)
    steps = (plain_s, plain_s * (1 + verify)), (plain_s, 2 * plain_s)
    true, prior = (
        PairTimes.apart(Grid((1,), (1, 8), (step,)), ByTokens((1,), (plain_s * share,)))
        for step, share in zip(steps, (draft / 10, 0.05), strict=True)
    )
    turns = [rate for length, rate in phases for _ in range(length)] or [0.0]

    def turn(number: int) -> float:
        return turns[number % len(turns)]

    pair = ScriptedPair(
        true, turn, turn, batch=batch, lag=lag, rounds_behind=rounds_behind, seed=seed
    )
    ride = pair.run(controller(prior, choices, batch=batch), 600)
    fair_s = [tokens * ride.plain_s for tokens in ride.tokens]
    lost_s = [took - fair for took, fair in zip(ride.seconds, fair_s, strict=True)]
    worst = max(
        longest_round_s(each, batch, plan) for each in (true, prior) for plan in choices.plans()
    )
    for first in range(0, 600, 50):
        for last in range(first + 50, 601, 50):
            allowed_s = SHARE * sum(fair_s[first:last]) + NUM_ROUNDS * worst
            overrun_s = (1 + lag) * worst
            assert sum(lost_s[first:last]) <= allowed_s + overrun_s


@given(
    prior=st.floats(0.02, 0.98),
    phases=st.lists(st.tuples(st.integers(1, 200), st.sampled_from([0.0, 0.3, 0.7, 1.0]))),
    choices=st.sampled_from([SD, BOTH]),
    times=st.sampled_from([CPU, SLOW_DRAFT]),
    lag=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_where_forecasts_are_right_the_account_is_never_overdrawn(
    prior, phases, choices, times, lag, seed
) -> None:
    """No round begins that is not paid for: trials went on with what was in flight unpaid, and
    with plans that lose more than the one that they were granted for."""
    turns = [rate for length, rate in phases for _ in range(length)] or [0.0]

    def turn(number: int) -> float:
        return turns[number % len(turns)]

    times = dataclasses.replace(times, exchange_s=GAP_S)
    policy = controller(times, choices, prior)
    pair = ScriptedPair(times, turn, turn, lag=lag, rounds_behind=0, seed=seed)
    for _ in range(400):
        pair.run(policy, 1)
        assert policy.credit.balance_s >= -1e-9


def test_a_batch_that_has_changed_is_compared_with_a_plain_step_of_its_own() -> None:
    """One row was compared with the plain step of eight, and anything looked like a gain."""
    step = ((0.006, 0.007), (0.036, 0.037))
    times = PairTimes.apart(Grid((1, 8), (1, 5), step), ByTokens((1,), (0.0008,)), GAP_S)
    policy = controller(times, prior=0.02, batch=8)
    before_s = policy.credit.balance_s
    row = RowReport(0, ProposalKind.NONE, 0, 0, None, 1)
    policy.next_round(far)
    policy.observe(RoundReport(1, (row,), PLAIN, 0.0063, 0.006))
    assert policy.credit.balance_s - before_s == pytest.approx(SHARE * 0.0063)


def test_rows_that_sit_a_round_out_are_still_there() -> None:
    """Under jit they are in no report, and the others were compared with plain decoding of
    themselves alone: twice as fast as it was."""
    flat = PairTimes.apart(ByTokens((1,), (0.010,)), ByTokens((1,), (0.0005,)), GAP_S)
    plan = RoundPlan("ssd", 1, 1, Fallback.JIT)
    policy = controller(flat, Choices(("ssd",), 1, 1, (Fallback.JIT,)), 0.9, batch=2)
    assert policy.credit.limit_s == pytest.approx(
        NUM_ROUNDS * (longest_round_s(flat, 2, plan) - 0.0103 / 2)
    )
    before_s = policy.credit.balance_s
    for number, slots in enumerate(((0, 1), (1,)), start=1):
        rows = tuple(RowReport(slot, ProposalKind.JIT, 1, 0, False, 1) for slot in slots)
        policy.next_round(far)
        policy.observe(RoundReport(number, rows, plan, 0.0103, 0.010, 0.001, 0.0))
    lost_s = before_s - policy.credit.balance_s
    assert lost_s == pytest.approx(0.0103 / 2 - SHARE * 1.5 * 0.0103)


def test_a_draft_that_is_slow_only_beside_the_target_is_planned_for_as_it_is() -> None:
    """Calibration measures each engine while the other one rests. Too much was prepared, given up
    as too slow, and tried again, for good."""
    slow = ByTokens((1, 16), (0.0012, 0.0060))
    true = dataclasses.replace(CPU, draft_beside=slow)
    ride = ScriptedPair(true, lambda _: 0.8, lambda _: 0.8).run(controller(CPU, BOTH, 0.8), 3000)
    best = ScriptedPair(true, lambda _: 0.8).run(controller(CPU, SD, 0.8), 3000)
    assert ride.modes[1000:].count("ar") < 80
    assert ride.against_plain(1000) > 0.9 * best.against_plain(1000)
