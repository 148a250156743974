"""Plans against the cost model they are made with, and their verdicts in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.plan.planner import Question, answer, curves
from runtime.plan.verdict import verdict
from runtime.spec.cost.economics import Devices
from runtime.spec.cost.laws import Laws, laws_of_acceptance
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN

FOUR_AND_ONE = Devices(4, 1)


def question(
    verify_s: float, draft_s: float, acceptance: float, devices: Devices = FOUR_AND_ONE
) -> Question:
    times = PairTimes.apart(ByTokens((1,), (verify_s,)), ByTokens((1,), (draft_s,)))
    return Question(times, laws_of_acceptance(acceptance), 1, devices, 8, 16)


GOOD = question(0.015, 0.0015, 0.85)


def test_every_mode_is_answered_as_the_model_predicts() -> None:
    plan = answer(GOOD)
    assert [choice.mode for choice in plan.choices] == ["ar", "sd", "ssd", "ssd"]
    assert plan.plain.prediction == predict(GOOD.times, GOOD.laws, 1, PLAIN)
    for choice in plan.choices:
        again = predict(GOOD.times, GOOD.laws, 1, choice.prediction.plan)
        assert choice.prediction == again
        assert choice.speed_up == pytest.approx(again.tokens_s / plan.plain.tokens_s)
        assert choice.tokens_s_each == again.tokens_s / (5 if choice.mode == "ssd" else 4)
    assert plan.best.tokens_s == max(choice.tokens_s for choice in plan.choices)
    assert plan.best_of("sd").mode == "sd"


def test_the_fan_out_sums_to_the_branches_after_a_hit_and_after_a_miss() -> None:
    plan = answer(GOOD)
    assert plan.plain.fan_out == plan.plain.fan_out_after_miss == ()
    for choice in plan.choices[2:]:
        setting = choice.prediction.plan
        assert sum(choice.fan_out) == sum(choice.fan_out_after_miss) == setting.num_branches
        assert len(choice.fan_out) == setting.num_draft + 1
        drafted = setting.num_draft if setting.fallback is Fallback.JIT else 0
        assert len(choice.fan_out_after_miss) == drafted + 1


def test_lookups_are_looked_at_where_texts_repeat_themselves() -> None:
    none = Question(GOOD.times, GOOD.laws, 1, GOOD.devices, 4, 4)
    some = replace(none, laws=Laws(GOOD.laws.kinds, lookup_share=0.3))
    assert Fallback.LOOKUP not in none.space.fallbacks
    assert answer(some).choices[-1].prediction.plan.fallback is Fallback.LOOKUP


def test_curves_rise_with_acceptance_and_meet_the_plan() -> None:
    found = curves(replace(GOOD, laws=laws_of_acceptance(0.0)), num=5, highest=0.8)
    assert found.acceptance == pytest.approx((0, 0.2, 0.4, 0.6, 0.8))
    assert len(set(found.tokens_s["ar"])) == 1
    for mode in ("sd", "ssd"):
        assert list(found.tokens_s[mode]) == sorted(found.tokens_s[mode])
    at = answer(replace(GOOD, laws=laws_of_acceptance(0.8)))
    for mode, rates in found.tokens_s.items():
        assert rates[-1] == pytest.approx(at.best_of(mode).tokens_s, rel=0.02)


# --- verdicts ---


def test_a_good_pair_pays_and_so_does_its_device() -> None:
    fastest, device = verdict(answer(GOOD))
    assert fastest.startswith("Speculation pays: ssd with K = ")
    assert "Without drafting ahead (sd) it is" in fastest
    assert device.startswith("The draft's own device pays for itself: ")
    assert "for each of 5 devices with it" in device
    assert "for each of 4 without (sd)" in device


def test_a_quick_draft_needs_no_device_but_makes_answers_faster() -> None:
    """Vendors sell one more GPU; this says what it is good for."""
    plan = answer(question(0.015, 0.0003, 0.85))
    _, device = verdict(plan)
    assert device.startswith("The draft's own device does not pay for itself: ")
    faster = plan.best_of("ssd").tokens_s / plan.best_of("ar", "sd").tokens_s
    assert f"every answer comes {faster:.2f} times as fast" in device
    assert device.endswith("It would at no acceptance, with these step times and K up to 8.")


def test_a_device_that_pays_for_better_drafts_says_how_much_better() -> None:
    _, device = verdict(answer(question(0.015, 0.0015, 0.1)))
    assert device.startswith("The draft's own device does not pay for itself: ")
    assert "It would from an acceptance of 0." in device


def test_a_bad_draft_is_not_bought() -> None:
    fastest, device = verdict(answer(question(0.008, 0.007, 0.1, Devices(1, 2))))
    assert fastest.startswith("Speculation does not pay here: plain decoding gives 125 tokens/s")
    assert "It would from an acceptance of 0." in fastest
    assert device.startswith("The draft's own devices do not pay for themselves: ")
    assert "No answer comes faster for them, either." in device
    assert "It would at no acceptance" in device


def test_a_gain_within_the_model_s_error_is_not_praised() -> None:
    fastest, _ = verdict(answer(question(0.015, 0.0015, 0.01)))
    assert fastest.startswith("Speculation gains next to nothing here: ssd with K = ")
    assert fastest.endswith("plain decoding 66.67 tokens/s.")


def test_a_hopeless_draft_pays_at_no_acceptance() -> None:
    fastest, _ = verdict(answer(question(0.001, 0.1, 0.9)))
    assert "It would at no acceptance" in fastest


def test_a_draft_that_is_never_accepted_pays_above_that() -> None:
    """ "It would from an acceptance of 0.00 on" stood beside an acceptance of 0.00."""
    fastest, device = verdict(answer(question(0.015, 0.0015, 0.0, Devices(1, 1))))
    assert "It would from any acceptance above 0 on" in fastest
    assert "for the one without (ar)" in device


def test_a_shared_device_is_not_judged() -> None:
    times = GOOD.times
    slow = PairTimes(times.target, ByTokens((1,), (0.05,)), times.draft, times.draft)
    lines = verdict(answer(replace(GOOD, times=slow, devices=Devices(1, 0))))
    assert len(lines) == 1
    assert lines[0].startswith("Speculation pays: sd with K = ")
    assert "Drafting ahead (ssd) gains nothing" in lines[0]


def test_copies_keep_their_own_law_at_any_acceptance() -> None:
    laws = Laws(GOOD.laws.kinds, 0.2).at_acceptance(0.3)
    assert laws.kinds[ProposalKind.HIT].accept == pytest.approx([0.3])
    assert laws.kinds[ProposalKind.LOOKUP] is GOOD.laws.kinds[ProposalKind.LOOKUP]
    assert laws.lookup_share == 0.2
