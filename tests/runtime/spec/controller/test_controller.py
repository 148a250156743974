"""The controller on scripted pairs: time is added up, so every figure here is exact."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.controller import Choices, Controller
from runtime.spec.controller.choices import as_if_uncut, is_near, longest_round_s
from runtime.spec.controller.credit import NUM_ROUNDS, SHARE
from runtime.spec.controller.pace import GAP_S
from runtime.spec.controller.policy import (
    CHECK_EVERY,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    TRIAL_ROUNDS,
)
from runtime.spec.cost import ByTokens, Grid, PairTimes, laws_of_acceptance
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, Outlook, RoundPlan, RoundReport, RowReport
from tests.helpers.scripted_pair import Ride, ScriptedPair

# Two cores: a verification costs more for each token, the draft a twentieth of a step.
CPU = PairTimes.apart(
    ByTokens((1, 2, 5), (0.0060, 0.0071, 0.0095)), ByTokens((1, 16), (0.0004, 0.0020)), 0.0003
)
# Two GPUs: the draft works beside a target that is bound by its weights.
GPU = PairTimes.apart(
    ByTokens((1, 64), (0.0140, 0.0160)), ByTokens((1, 64), (0.0011, 0.0016)), 0.0001
)
# A draft as slow as its target.
SLOW_DRAFT = PairTimes.apart(ByTokens((1, 5), (0.0060, 0.0065)), ByTokens((1,), (0.0060,)), 0.0001)
SD = Choices(("sd",), 4)
BOTH = Choices(("sd", "ssd"), 4, 16, tuple(Fallback))


def controller(
    times: PairTimes = CPU, choices: Choices = SD, prior: float = 0.5, batch: int = 1
) -> Controller:
    return Controller(times, laws_of_acceptance(prior), choices, batch=batch)


def _far() -> Outlook:
    """Nothing to read, and much to come."""
    return Outlook(10**6)


def drafts_of(ride: Ride, first: int = 0, last: int | None = None) -> list[int]:
    return [plan.num_draft for plan in ride.plans[first:last] if plan.mode != "ar"]


# --- P1: it never costs more than 3 % ---


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
    policy.next_round(_far)
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
        policy.next_round(_far)
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


# --- P3: K follows the text ---


def test_the_number_of_drafts_moves_both_ways() -> None:
    """Easy and hard texts alternate, and both are worth drafting for."""
    ride = ScriptedPair(CPU, lambda number: 0.9 if (number // 300) % 2 == 0 else 0.45).run(
        controller(prior=0.6), 1800
    )
    for easy, hard in ((0, 300), (600, 900)):
        most = drafts_of(ride, easy + 150, easy + 300)
        least = drafts_of(ride, hard + 150, hard + 300)
        assert sum(most) / len(most) > 3.5
        assert sum(least) / len(least) < 2.5
    assert set(drafts_of(ride)) <= {1, 2, 3, 4}
    changes = [(a, b) for a, b in pairwise(ride.plans) if a != b and "ar" not in (a.mode, b.mode)]
    assert len(changes) >= 4
    assert all(is_near(before, after) for before, after in changes)


def test_more_is_drafted_than_calibration_thought_worth_it() -> None:
    ride = ScriptedPair(CPU, lambda _: 0.8).run(controller(prior=0.05), 1500)
    assert drafts_of(ride)[-1] >= 3
    assert ride.against_plain(500) > 1.6


@pytest.mark.parametrize("accept", [0.3, 0.5, 0.7])
@pytest.mark.parametrize(("times", "choices"), [(CPU, SD), (GPU, BOTH)])
def test_a_plan_does_not_flutter(times, choices, accept) -> None:
    """At the edge between two plans the choice would follow every round's luck."""
    ride = ScriptedPair(times, lambda _: accept, lambda _: accept).run(
        controller(times, choices), 2000
    )
    changes = [(a, b) for a, b in pairwise(ride.plans) if a != b and "ar" not in (a.mode, b.mode)]
    assert len(changes) < 20


# --- P4: never stuck one way ---


@pytest.mark.parametrize(("times", "choices"), [(CPU, SD), (GPU, BOTH)])
def test_after_a_bad_phase_speculation_returns(times, choices) -> None:
    def easy(number: int) -> float:
        return 0.02 if number < 1500 else 0.9

    ride = ScriptedPair(times, easy, easy).run(controller(times, choices), 1500 + 2000)
    assert ride.against_plain(100, 1500) >= 0.97
    speculative = [number for number, mode in enumerate(ride.modes) if mode != "ar"]
    assert min(number for number in speculative if number > 1500) < 1500 + LONGEST_PAUSE + 200
    assert ride.modes[2500:].count("ar") < 50
    assert ride.against_plain(2500) > 1.4


def test_a_trial_waits_for_what_its_plan_may_lose() -> None:
    """It was granted for one draft and made with four: it was over after a round, without a
    verdict, time after time."""

    def easy(number: int) -> float:
        return 0.0 if number < 700 else 0.9

    pair = ScriptedPair(CPU, easy, easy, rounds_behind=0)
    modes = pair.run(controller(CPU, BOTH, 0.9), 1500).modes
    assert modes[1150:].count("ar") < 30


def test_a_bad_phase_ends_speculation_and_the_next_good_one_begins_it_again() -> None:
    ride = ScriptedPair(CPU, lambda number: 0.9 if (number // 400) % 2 == 0 else 0.0).run(
        controller(), 4000
    )
    for first in range(400, 3200, 800):
        bad, good = ride.modes[first + 40 : first + 400], ride.modes[first + 400 : first + 800]
        assert bad.count("ar") > 0.8 * len(bad)
        assert good.count("sd") > 0.4 * len(good)
    assert ride.against_plain() > 1.25


def test_plain_decoding_is_looked_at_while_speculation_runs() -> None:
    """A machine on which only plain steps have become faster would never notice."""
    ride = ScriptedPair(CPU, lambda _: 0.9).run(controller(), 4 * CHECK_EVERY)
    late = ride.modes[FIRST_PAUSE:]
    assert 6 <= late.count("ar") <= 24


def test_speculation_that_earned_is_tried_again_soon_after_a_check_has_ended_it() -> None:
    """It was put off as if a trial had failed."""
    fast = PairTimes.apart(ByTokens((1, 2, 5), (0.0030, 0.0071, 0.0095)), CPU.draft, 0.0003)
    pair = ScriptedPair(CPU, lambda _: 0.5)
    policy = controller(prior=0.5)
    modes = pair.run(policy, CHECK_EVERY - 20).modes
    assert modes[10:].count("sd") == len(modes[10:])
    pair.times = fast
    while "plain rounds are faster" not in policy.note:
        pair.run(policy, 1)
        assert pair.number < 2 * CHECK_EVERY
    assert "sd" in pair.run(policy, FIRST_PAUSE + 4).modes


def test_speculation_that_alone_has_become_slow_ends_with_the_next_check() -> None:
    """Its baseline was believed to have become as slow, for a thousand rounds."""

    class Slowing(ScriptedPair):
        def _seconds(self, ran, rows):
            slow = 2.0 if ran.mode == "sd" and self.number > 300 else 1.0
            verify_s, draft_s, exposed_s = super()._seconds(ran, rows)
            return slow * verify_s, draft_s, exposed_s

    ride = Slowing(CPU, lambda _: 0.7).run(controller(prior=0.7), 1500)
    assert ride.against_plain(300 + CHECK_EVERY) >= 0.96


def test_pauses_between_trials_grow_and_end() -> None:
    ride = ScriptedPair(CPU, lambda _: 0.0).run(controller(prior=0.05), 6000)
    trials = [
        number
        for number, (before, now) in enumerate(pairwise(ride.modes))
        if before == "ar" and now != "ar"
    ]
    pauses = [later - sooner for sooner, later in pairwise(trials)]
    assert pauses[0] < 8 * FIRST_PAUSE
    assert len(pauses) >= 6
    assert max(pauses) < 2 * LONGEST_PAUSE


def test_one_more_row_of_bad_luck_does_not_end_what_pays() -> None:
    ride = ScriptedPair(CPU, lambda _: 0.8).run(controller(prior=0.8), 3000)
    assert ride.modes.count("sd") > 0.95 * 3000


# --- near the best fixed plan ---


@pytest.mark.parametrize("accept", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("times", "choices"), [(CPU, SD), (GPU, BOTH)])
def test_it_comes_close_to_the_best_fixed_plan(times, choices, accept) -> None:
    class Always:
        def __init__(self, plan: RoundPlan) -> None:
            self.next_round = lambda _: plan

        def observe(self, report: RoundReport) -> None:
            pass

        def failed(self, reason: str) -> None:
            pass

    def run(policy) -> float:
        pair = ScriptedPair(times, lambda _: accept, lambda _: accept, rounds_behind=0)
        return pair.run(policy, 1500).against_plain()

    plans = [plan for plan in choices.plans() if plan.num_branches in (0, 16)]
    fixed = max(run(Always(plan)) for plan in [PLAIN, *plans])
    assert run(controller(times, choices)) > 0.9 * fixed


# --- what it is told, and what it says ---


def test_without_a_draft_everything_is_plain() -> None:
    policy = controller(choices=Choices())
    ride = ScriptedPair(CPU, lambda _: 0.9).run(policy, 100)
    assert set(ride.modes) == {"ar"}
    assert policy.note == "auto runs ar: there is no draft to speculate with"


def test_a_draft_that_failed_is_never_asked_again() -> None:
    policy = controller(prior=0.9)
    pair = ScriptedPair(CPU, lambda _: 0.9)
    pair.run(policy, 50)
    policy.failed("the draft did not answer within 10 s")
    assert set(pair.run(policy, 3000).modes) == {"ar"}
    assert policy.note == "auto runs ar for good: the draft did not answer within 10 s"


def test_every_change_of_mind_has_its_line_with_the_figures() -> None:
    policy = controller()
    pair = ScriptedPair(CPU, lambda number: 0.9 if number < 300 else 0.0)
    lines = [policy.note]
    for _ in range(600):
        pair.run(policy, 1)
        if policy.note != lines[-1]:
            lines.append(policy.note)
    assert len(lines) > 2
    assert lines[0].startswith("auto runs sd K")
    assert "by calibration" in lines[0]
    assert any(line.startswith("auto runs ar (") for line in lines[-2:])  # the last may be a trial
    assert all("tokens/s, ar " in line and "first drafts accepted" in line for line in lines)


def test_the_log_does_not_end_with_what_is_long_over() -> None:
    """A change soon after the last told one was never told, and the log went on to claim sd."""
    told: list[str] = []
    policy = Controller(CPU, laws_of_acceptance(0.9), SD, on_change=told.append)
    ScriptedPair(CPU, lambda _: 0.0).run(policy, 80)
    assert told[0].startswith("auto runs sd")
    assert told[-1].startswith("auto runs ar")


def test_the_note_is_of_the_plan_that_is_followed_now() -> None:
    """K went from 1 to 4 while the note went on to speak of the trial's."""
    policy = controller(prior=0.05)
    ride = ScriptedPair(CPU, lambda _: 0.9).run(policy, 1000)
    assert ride.plans[-1] == RoundPlan("sd", 4)
    assert policy.note.startswith("auto runs sd K 4 (better than sd K")


def test_reports_that_never_come_do_not_use_up_the_account() -> None:
    """A call that is interrupted leaves rounds in flight without a report."""
    policy = controller(prior=0.9)
    pair = ScriptedPair(CPU, lambda _: 0.9)
    for _ in range(300):
        policy.next_round(_far)
    assert pair.run(policy, 600).modes.count("sd") > 400


def test_a_round_with_a_pause_in_it_costs_what_its_engines_took() -> None:
    """The user thinks for a minute; the account must not pay for that."""
    policy = controller(prior=0.9)
    pair = ScriptedPair(CPU, lambda _: 0.9)
    pair.run(policy, 200)
    rows = (RowReport(0, ProposalKind.JIT, 4, 4, None, 5),)
    policy.next_round(_far)
    policy.observe(RoundReport(1, rows, RoundPlan("sd", 4), None, 0.0095, 0.0016, 0.0016))
    assert pair.run(policy, 50).modes.count("sd") > 40


def test_a_machine_that_was_asleep_does_not_end_speculation_for_long() -> None:
    """The rounds before and behind it are as fast as ever."""
    policy = controller(prior=0.9)
    pair = ScriptedPair(CPU, lambda _: 0.9, slow=lambda number: 500.0 if number == 200 else 1.0)
    modes = pair.run(policy, 700).modes
    assert modes[300:].count("sd") > 350


def test_rows_that_are_behind_are_no_verdict_on_the_draft() -> None:
    """It took in the text; nothing was drafted, so nothing was wrong."""
    policy = controller(prior=0.9)
    before = policy.note
    for _ in range(8):
        plan = policy.next_round(_far)
        row = RowReport(0, ProposalKind.NONE, 0, 0, None, 1, is_behind=True)
        policy.observe(RoundReport(1, (row,), plan, 0.0063, 0.006, 0.0, 0.0))
    assert policy.note == before
    assert policy.next_round(_far).mode == "sd"


def test_a_trial_behind_a_long_prompt_comes_to_its_verdict() -> None:
    """Taking in the text used up what the trial was to live on, time after time."""
    policy = controller(CPU, prior=0.02)
    pair = ScriptedPair(CPU, lambda _: 0.9, rounds_behind=12, slow_behind=2.0)
    ride = pair.run(policy, 2500)
    assert ride.modes[-200:].count("sd") > 190
    hopeless = ScriptedPair(CPU, lambda _: 0.0, rounds_behind=12, slow_behind=2.0)
    assert hopeless.run(controller(CPU, prior=0.9), 4000).against_plain() >= 0.97


@pytest.mark.parametrize(
    ("row", "plan", "before", "found"),
    [
        ((ProposalKind.JIT, 2), RoundPlan("sd", 4), RoundPlan("sd", 3), (ProposalKind.JIT, 3)),
        ((ProposalKind.JIT, 4), RoundPlan("sd", 4), RoundPlan("sd", 3), (ProposalKind.JIT, 4)),
        ((ProposalKind.NONE, 0), RoundPlan("sd", 4), PLAIN, (ProposalKind.JIT, 1)),
        ((ProposalKind.HIT, 1), RoundPlan("ssd", 4), RoundPlan("ssd", 2), (ProposalKind.HIT, 2)),
        ((ProposalKind.HIT, 2), RoundPlan("ssd", 4), RoundPlan("ssd", 2), (ProposalKind.HIT, 2)),
        ((ProposalKind.NONE, 0), RoundPlan("ssd", 4), RoundPlan("ssd", 4), (ProposalKind.NONE, 0)),
    ],
)
def test_a_token_left_out_counts_like_a_rejected_one(row, plan, before, found) -> None:
    """Only confident drafts were counted, so K looked better the shorter proposals were."""
    kind, num_drafted = row
    report = RowReport(0, kind, num_drafted, 0, None)
    assert as_if_uncut(report, plan, before) == found


def test_proposals_that_are_cut_to_nothing_are_a_verdict_on_the_draft() -> None:
    """The draft is never sure of anything: its trial must come to an end."""
    policy = Controller(CPU, laws_of_acceptance(0.9), SD, is_cut=True)
    modes = []
    for number in range(400):
        plan = policy.next_round(_far)
        modes.append(plan.mode)
        row = RowReport(0, ProposalKind.NONE, 0, 0, None, 1)
        draft_s = 0.0004 if plan.mode == "sd" else 0.0
        seconds = 0.0063 + draft_s
        policy.observe(RoundReport(number, (row,), plan, seconds, 0.006, draft_s, draft_s))
    assert modes[-200:].count("ar") > 150


@pytest.mark.parametrize("batch", [1, 4])
def test_a_round_without_rows_teaches_nothing(batch: int) -> None:
    policy = controller(batch=batch)
    policy.observe(RoundReport(1, ()))
    assert policy.next_round(_far) == PLAIN  # the first rounds look at plain decoding


@pytest.mark.parametrize("choices", [SD, Choices(("ssd",), 4, 16)])
def test_requests_shorter_than_a_trial_are_learnt_from_together(choices) -> None:
    """Each begins without proposals, and none lasts as long as it takes to judge a draft."""
    policy = controller(GPU, choices, prior=0.1)
    pair = ScriptedPair(GPU, lambda _: 0.9, lambda _: 0.9, rounds_behind=0)
    modes = []
    for _ in range(500):
        pair.hits = [None]
        modes += pair.run(policy, 3).modes
    assert modes[-300:].count("ar") < 15


def test_fewer_rows_make_speculation_pay_where_a_full_batch_does_not() -> None:
    """A full batch keeps the target busy by itself: each drafted token costs as much as a step."""
    busy = PairTimes.apart(
        ByTokens((1, 8, 64), (0.010, 0.0105, 0.080)), ByTokens((1,), (0.0003,)), 0.0001
    )
    choices = Choices(("sd",), 4)
    policy = controller(busy, choices, batch=16)
    full = ScriptedPair(busy, lambda _: 0.6, batch=16).run(policy, 600)
    assert full.modes[100:].count("ar") > 400
    alone = ScriptedPair(busy, lambda _: 0.6).run(policy, 600)
    assert alone.modes[200:].count("sd") > 350


def test_only_what_may_be_chosen_is_planned() -> None:
    choices = Choices(("ssd",), 3, 5, (Fallback.JIT,))
    ride = ScriptedPair(GPU, lambda _: 0.7, lambda _: 0.7).run(controller(GPU, choices), 500)
    planned = {plan for plan in ride.plans if plan.mode != "ar"}
    assert planned
    assert planned <= set(choices.plans())
    assert {plan.num_branches for plan in choices.plans()} == {5, 2, 1}
