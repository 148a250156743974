"""The model's host term is what a machine with known host work has, whatever the engines take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.bench.replay.host_term import HostTerm, scaled, term_of
from runtime.bench.replay.measure import Measured, measure
from runtime.bench.replay.profile import read_profile
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan

TIMES = PairTimes.apart(ByTokens((1,), (0.015,)), ByTokens((1,), (0.0017,)))
BEHIND_TARGET_S, BEHIND_DRAFT_S, CALL_S = 0.0003, 0.0011, 0.0001
NUM_DRAFT = 7
LAWS = read_profile("budgets").laws["greedy"].laws


class Machine:
    """Rounds of the virtual clock, and the same with known work of the host added."""

    def __init__(self, plan: RoundPlan) -> None:
        self.plan = plan

    def run(self, times: PairTimes, rounds: int = 300) -> Measured:
        laws = LAWS(self.plan.mode)
        return measure(self.plan, times, laws, 1, rounds, is_real=False, warm_up=50)

    def both(self, times: PairTimes) -> tuple[Measured, Measured]:
        virtual = self.run(times)
        ahead = (1 + self.plan.num_draft) * times.draft.seconds(1, 1)
        is_of_draft = self.plan.mode == "ssd" and ahead > times.target.seconds(1, 1)
        added = BEHIND_DRAFT_S if is_of_draft else BEHIND_TARGET_S
        again_s = self.plan.num_draft * CALL_S if self.plan.mode == "ssd" else 0.0
        rounds_s = tuple(
            ideal + added + (again_s if was_again else 0.0)
            for ideal, was_again in zip(virtual.rounds_s, virtual.were_again, strict=True)
        )
        seconds = sum(rounds_s)
        tokens_s = virtual.tokens_s * virtual.seconds / seconds
        return replace(virtual, rounds_s=rounds_s, seconds=seconds, tokens_s=tokens_s), virtual


@pytest.mark.parametrize("plan", [PLAIN, RoundPlan("sd", 6)])
def test_modes_that_prepare_nothing_have_one_term(plan: RoundPlan) -> None:
    found = term_of(plan, TIMES, Machine(plan).both)
    assert found == HostTerm(pytest.approx(BEHIND_TARGET_S), 0.0, 0.0)


@pytest.mark.parametrize("fallback", [Fallback.ZERO, Fallback.JIT])
def test_work_behind_either_engine_and_beside_each_call_is_told_apart(fallback: Fallback) -> None:
    plan = RoundPlan("ssd", NUM_DRAFT, 24, fallback)
    found = term_of(plan, TIMES, Machine(plan).both)
    assert found.exchange_s == pytest.approx(BEHIND_TARGET_S)
    assert found.exchange_s + found.ahead_s == pytest.approx(BEHIND_DRAFT_S)
    assert found.again_s == pytest.approx(CALL_S if fallback is Fallback.JIT else 0.0)


@pytest.mark.parametrize("draft_s", [0.0005, 0.0017, 0.003])
def test_the_prediction_with_the_term_is_what_the_machine_does(draft_s: float) -> None:
    """Whichever engine sets the pace of the replayed rounds."""
    plan = RoundPlan("ssd", NUM_DRAFT, 24, Fallback.JIT)
    times = PairTimes.apart(TIMES.target, ByTokens((1,), (draft_s,)))
    machine = Machine(plan)
    predicted = predict(term_of(plan, times, machine.both).beside(times), LAWS("ssd"), 1, plan)
    measured, _ = machine.both(times)
    assert measured.round_s > 0
    assert measured.seconds / measured.num_rounds == pytest.approx(predicted.round_s, rel=0.02)


def test_scaled_times_have_no_term_of_their_own() -> None:
    """A term that was measured with the last one in it would count it twice."""
    found = scaled(HostTerm(1.0, 2.0, 3.0).beside(TIMES), target=0.5, draft=0.1)
    assert (found.exchange_s, found.ahead_s, found.again_s) == (0, 0, 0)
    assert found.target.seconds(1, 1) == pytest.approx(0.0075)
    assert found.draft_beside.seconds(1, 1) == pytest.approx(0.00017)
