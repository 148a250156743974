"""What a controller makes of what it is told, and what it says."""

from __future__ import annotations

import pytest

from runtime.spec.controller import Choices, Controller
from runtime.spec.controller.choices import as_if_uncut
from runtime.spec.cost import ByTokens, PairTimes, laws_of_acceptance
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport
from tests.helpers.controllers import CPU, GPU, SD, controller, far
from tests.helpers.scripted_pair import ScriptedPair


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
        policy.next_round(far)
    assert pair.run(policy, 600).modes.count("sd") > 400


def test_a_round_with_a_pause_in_it_costs_what_its_engines_took() -> None:
    """The user thinks for a minute; the account must not pay for that."""
    policy = controller(prior=0.9)
    pair = ScriptedPair(CPU, lambda _: 0.9)
    pair.run(policy, 200)
    rows = (RowReport(0, ProposalKind.JIT, 4, 4, None, 5),)
    policy.next_round(far)
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
        plan = policy.next_round(far)
        row = RowReport(0, ProposalKind.NONE, 0, 0, None, 1, is_behind=True)
        policy.observe(RoundReport(1, (row,), plan, 0.0063, 0.006, 0.0, 0.0))
    assert policy.note == before
    assert policy.next_round(far).mode == "sd"


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
        plan = policy.next_round(far)
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
    assert policy.next_round(far) == PLAIN  # the first rounds look at plain decoding


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
