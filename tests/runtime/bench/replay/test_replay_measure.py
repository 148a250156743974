"""Replays: the real scheduler over drawn engines does what the cost model says, on a clock that no
other process disturbs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from runtime.bench.replay import clock as clocks
from runtime.bench.replay import measure as measuring
from runtime.bench.replay.measure import measure
from runtime.bench.replay.profile import read_profile
from runtime.bench.replay.run import RunFigures, best_plan, run_figures
from runtime.spec.cost.laws import KindLaw, Laws
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan

ONE = PairTimes.apart(ByTokens((1,), (0.015,)), ByTokens((1,), (0.002,)))
CERTAIN = KindLaw(np.array([1.0]), np.array([1.0]), np.array([1.0]))
NEVER = KindLaw(np.array([0.0]), np.array([0.0]), np.array([0.0]))
CLOSE = 0.03


def laws(**kinds: KindLaw) -> Laws:
    """The same law for every kind that is not named."""
    return Laws({kind: kinds.get(kind.name.lower(), CERTAIN) for kind in ProposalKind})


def on_virtual_clock(plan: RoundPlan, times: PairTimes, law: Laws, batch=1, rounds=60):
    return measure(plan, times, law, batch, rounds, is_real=False)


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "WARM_UP", 60)


def test_plain_decoding_is_one_call_a_round() -> None:
    found = on_virtual_clock(PLAIN, ONE, laws())
    assert found.tokens_s == pytest.approx(1 / 0.015)
    assert (found.tokens_round, found.sat_out, found.hit_rate) == (1, 0, None)


def test_drafts_that_always_hit_hide_all_drafting() -> None:
    """3 + 1 draft steps take 8 ms beside 15 ms of verification: a round is a verification."""
    found = on_virtual_clock(RoundPlan("ssd", 3, 8), ONE, laws())
    assert found.hit_rate == found.hit_rate_after_hit == 1
    assert found.tokens_round == 4
    assert found.round_s == pytest.approx(0.015)


def test_a_draft_that_is_slower_than_the_target_sets_the_pace() -> None:
    slow = PairTimes.apart(ByTokens((1,), (0.015,)), ByTokens((1,), (0.005,)))
    assert on_virtual_clock(RoundPlan("ssd", 3, 8), slow, laws()).round_s == pytest.approx(0.02)


def test_a_miss_that_is_drafted_just_in_time_makes_the_target_wait() -> None:
    found = on_virtual_clock(RoundPlan("ssd", 3, 8, Fallback.JIT), ONE, laws(none=NEVER, jit=NEVER))
    assert found.hit_rate == 0
    assert found.round_s == pytest.approx(3 * 0.002 + 0.015)
    assert found.tokens_round == 1


def test_drafting_between_verifications_adds_up() -> None:
    found = on_virtual_clock(RoundPlan("sd", 3), ONE, laws())
    assert found.round_s == pytest.approx(3 * 0.002 + 0.015)
    assert (found.tokens_round, found.hit_rate) == (4, None)


def test_the_same_run_gives_the_same_figures() -> None:
    plan, law = RoundPlan("ssd", 4, 6, Fallback.JIT), published()
    assert on_virtual_clock(plan, ONE, law, batch=3) == on_virtual_clock(plan, ONE, law, batch=3)


def test_outcomes_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of the clocks is reported as the runtime's own work: for the same rounds."""
    monkeypatch.setattr(clocks, "take_until", lambda _began, _seconds: 0.0)
    plan, law = RoundPlan("ssd", 4, 6, Fallback.JIT), published()
    counted = [
        replace(found, seconds=0, tokens_s=0, round_s=0, rounds_s=())
        for found in (measure(plan, ONE, law, 3, 60, is_real=real) for real in (False, True))
    ]
    assert counted[0] == counted[1]


def test_a_call_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asleep but for the last bit, and never longer than asked: sleeps overshoot."""
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds + 50e-6

    monkeypatch.setattr(clocks, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clocks, "sleep", sleep)
    clocks.take_until(99.999, 0.011)
    assert slept[0] == pytest.approx(0.010 - clocks.SPIN_S)
    assert set(slept[1:]) == {0}
    assert now[0] == pytest.approx(100.010, abs=60e-6)


def published() -> Laws:
    return read_profile("budgets").laws["greedy"].laws("ssd")


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("fallback", [Fallback.ZERO, Fallback.JIT])
@pytest.mark.parametrize(("num_draft", "width"), [(7, 24), (4, 5), (2, 1)])
def test_the_model_and_the_machine_agree(
    num_draft: int, width: int, fallback: Fallback, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is wrong if not: 3 % is what the design allows."""
    monkeypatch.setattr(measuring, "WARM_UP", 200)
    plan = RoundPlan("ssd", num_draft, width, fallback)
    found = on_virtual_clock(plan, ONE, published(), batch, rounds=400)
    expected = predict(ONE, published(), batch, plan)
    assert found.tokens_s == pytest.approx(expected.tokens_s, rel=CLOSE)
    assert found.hit_rate == pytest.approx(expected.hit_rate, abs=0.05)
    assert found.hit_rate_after_hit == pytest.approx(expected.hit_rate_after_hit, abs=0.05)
    assert found.hit_rate_after_miss == pytest.approx(expected.hit_rate_after_miss, abs=0.15)


def test_budgets_of_one_row_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 and 345 tokens/s are promised for the published law, by a setting the planner finds."""
    monkeypatch.setattr(measuring, "WARM_UP", 200)
    profile = read_profile("budgets")
    slow, fast = (figures(profile, place, 320) for place in (0, 1))
    assert slow.is_met
    assert fast.is_met
    best = [run.settings[-1] for run in (slow, fast)]
    assert [each.role for each in best] == ["best", "best"]
    assert best[0].num_draft < best[1].num_draft, "a slower draft has less time to hide"
    for each in (*slow.settings, *fast.settings):
        assert abs(each.distance) <= CLOSE
    assert [each.published for each in slow.settings] == [67, 182, None, 280, None]
    assert not any(each.published for each in fast.settings), "published with other step times"


def test_the_budget_of_sixteen_rows_is_met() -> None:
    """3,900 tokens/s: no row's miss stalls the others."""
    run = read_profile("budgets").runs[2]
    plan = best_plan(run, published())
    found = measure(plan, run.times, published(), run.batch, 128, is_real=False)
    assert found.tokens_s >= run.goal
    expected = predict(run.times, published(), run.batch, plan)
    assert found.tokens_s == pytest.approx(expected.tokens_s, rel=CLOSE)


def test_the_planner_stays_within_what_the_run_allows() -> None:
    run = replace(read_profile("budgets").runs[1], max_draft=3, max_branches=2)
    plan = best_plan(run, published())
    assert plan.num_draft <= 3
    assert plan.num_branches <= 2
    assert plan.fallback is not Fallback.LOOKUP


def figures(profile, place: int, rounds: int) -> RunFigures:
    run = profile.runs[place]
    looks: list[tuple[str, int]] = []
    found = run_figures(
        run,
        profile.laws[run.law].laws,
        rounds,
        is_real=False,
        watch=lambda what, done: looks.append((what, done)),
    )
    assert looks[-1][1] <= rounds
    assert len({what for what, _ in looks}) >= 4
    return found
