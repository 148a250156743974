"""Calibrated step times, corrected by what rounds took."""

from __future__ import annotations

import pytest

from runtime.spec.controller.pace import GAP_S, OUTLIER, Pace
from runtime.spec.cost import ByTokens, PairTimes
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundPlan, RoundReport, RowReport

PRIOR = PairTimes.apart(ByTokens((1, 5), (0.010, 0.014)), ByTokens((1,), (0.001,)), 0.0004)


def settle(pace: Pace, mode: str, true_s: float, num_rounds: int, width: int = 1) -> None:
    for _ in range(num_rounds):
        pace.see_target(mode, pace.times(mode).target.seconds(1, width), true_s)


def test_calibration_holds_until_rounds_are_seen() -> None:
    times = Pace(PRIOR).times("sd")
    assert times.target.seconds(1, 5) == 0.014
    assert times.draft.seconds(1, 1) == 0.001
    assert times.exchange_s == 0.0004


def test_a_modes_first_rounds_correct_it_quickly_and_it_alone() -> None:
    """Plain decoding that was measured too slow made speculation look good for hundreds of
    rounds."""
    pace = Pace(PRIOR)
    settle(pace, "ar", 0.006, 3)
    assert pace.times("ar").target.seconds(1, 1) == pytest.approx(0.006, rel=0.15)
    assert pace.times("sd").target.seconds(1, 1) == 0.010


def test_lookups_are_as_fast_as_plain_rounds_until_they_are_seen() -> None:
    """On a machine that was slower than when it was measured, they alone looked three times as
    fast as plain decoding."""
    pace = Pace(PRIOR)
    settle(pace, "ar", 0.030, 8)
    plain_s = pace.times("ar").target.seconds(1, 1)
    assert pace.times("sd lookup").target.seconds(1, 1) == plain_s > 0.02
    settle(pace, "sd lookup", 0.015, 1)
    assert 0.015 < pace.times("sd lookup").target.seconds(1, 1) < 0.025


def test_a_slower_machine_shows_in_every_mode() -> None:
    """After hundreds of rounds of sd beside other programs, plain decoding is slower, too."""
    pace = Pace(PRIOR)
    settle(pace, "ar", 0.010, 5)
    settle(pace, "sd", 0.014, 20, width=5)
    settle(pace, "sd", 0.021, 60, width=5)
    assert pace.times("sd").target.seconds(1, 5) == pytest.approx(0.021, rel=0.02)
    assert pace.times("ar").target.seconds(1, 1) > 0.0125


def test_what_slowed_one_mode_alone_is_soon_seen_not_to_be_the_others() -> None:
    """Plain decoding was believed to have become slower, too, through four checks of it."""
    pace = Pace(PRIOR)
    settle(pace, "ar", 0.010, 5)
    settle(pace, "sd", 0.014, 20, width=5)
    settle(pace, "sd", 0.028, 200, width=5)
    settle(pace, "ar", 0.010, 3)
    assert pace.times("ar").target.seconds(1, 1) < 0.0135


def rounds(pace: Pace, mode: str, span: int, seconds: float, num_rounds: int) -> None:
    """Steady ones that verify one token (``ar``) or draft one in a millisecond and verify two."""
    plan = RoundPlan("ar") if mode == "ar" else RoundPlan(mode, 1)
    rows = (RowReport(0, ProposalKind.JIT, plan.num_draft, 0, None, 1),)
    for number in range(num_rounds):
        draft_s = 0.001 * plan.num_draft
        pace.see(
            RoundReport(
                number, rows, plan, seconds + draft_s, seconds, draft_s, draft_s, span=span
            ),
            1,
        )


def test_drafts_behind_a_change_from_long_texts_to_short_ones_are_not_a_gain() -> None:
    """They were timed against plain rounds of the long ones."""
    pace = Pace(PRIOR)
    rounds(pace, "ar", 128, 0.010, 40)
    rounds(pace, "sd", 128, 0.011, 40)
    rounds(pace, "ar", 1024, 0.018, 60)
    rounds(pace, "sd", 128, 0.011, 8)
    assert pace.times("ar").target.seconds(1, 1) == pytest.approx(0.010, rel=0.03)
    assert pace.times("sd").target.seconds(1, 2) == pytest.approx(0.011, rel=0.03)
    rounds(pace, "ar", 1024, 0.018, 2)
    assert pace.times("ar").target.seconds(1, 1) == pytest.approx(0.018, rel=0.03)


def test_longer_texts_slow_every_mode_at_once() -> None:
    pace = Pace(PRIOR)
    rounds(pace, "ar", 128, 0.010, 40)
    before_s = pace.times("sd").target.seconds(1, 2)
    rounds(pace, "ar", 1024, 0.018, 9)
    assert pace.times("ar").target.seconds(1, 1) == pytest.approx(0.018, rel=0.03)
    assert pace.times("sd").target.seconds(1, 2) == pytest.approx(1.8 * before_s, rel=0.03)


def test_what_a_mode_takes_on_long_texts_alone_is_not_held_against_it_on_short_ones() -> None:
    """Wider calls cost more the more cache rows there are."""
    pace = Pace(PRIOR)
    for _ in range(3):
        rounds(pace, "ar", 128, 0.010, 30)
        rounds(pace, "sd", 128, 0.011, 30)
        rounds(pace, "ar", 1024, 0.018, 30)
        rounds(pace, "sd", 1024, 0.026, 30)
    rounds(pace, "ar", 128, 0.010, 8)
    assert pace.times("sd").target.seconds(1, 2) == pytest.approx(0.011, rel=0.05)
    rounds(pace, "ar", 1024, 0.018, 8)
    assert pace.times("sd").target.seconds(1, 2) == pytest.approx(0.026, rel=0.05)


def test_the_round_that_lays_the_caches_out_anew_says_nothing() -> None:
    pace = Pace(PRIOR)
    rounds(pace, "ar", 128, 0.010, 40)
    rounds(pace, "ar", 256, 0.100, 1)
    assert pace.times("ar").target.seconds(1, 1) == pytest.approx(0.010, rel=0.001)
    rounds(pace, "ar", 256, 0.012, 1)
    assert pace.times("ar").target.seconds(1, 1) == pytest.approx(0.012, rel=0.001)


def test_one_hiccup_is_not_the_machines_pace() -> None:
    pace = Pace(PRIOR)
    settle(pace, "ar", 0.010, 20)
    settle(pace, "ar", 5.0, 1)
    assert pace.times("ar").target.seconds(1, 1) < 0.010 * OUTLIER ** (1 / 4)


def test_hiccups_hardly_move_the_pace() -> None:
    """Every eighth round beside another program took twice as long, and plain decoding was believed
    to be 9 % slower than it is: copies and drafts then looked like gains."""
    pace = Pace(PRIOR)
    for number in range(200):
        settle(pace, "ar", 0.020 if number % 8 == 7 else 0.010, 1)
    assert pace.times("ar").target.seconds(1, 1) < 0.0105


def test_rounds_beside_which_a_draft_was_reading_say_nothing() -> None:
    pace = Pace(PRIOR)
    rows = (RowReport(0, ProposalKind.JIT, 4, 1, None, 2),)
    pace.see(RoundReport(1, rows, RoundPlan("sd", 4), 0.060, 0.028, 0.004, 0.004, False), 1)
    assert pace.times("sd").target.seconds(1, 5) == 0.014


def test_the_drafts_pace_is_its_own() -> None:
    pace = Pace(PRIOR)
    for number in range(80):
        seconds = 0.004 if number < 20 else 0.008
        pace.see_draft("sd", 4 * pace.times("sd").draft.seconds(1, 1), seconds)
    assert pace.times("sd").draft.seconds(1, 1) == pytest.approx(0.002, rel=0.02)
    assert pace.times("ssd").draft_beside.seconds(1, 1) == pytest.approx(0.00168, rel=0.02)
    assert pace.times("sd").target.seconds(1, 1) == 0.010


def prepared(pace: Pace, draft_s: float, num_rounds: int, plan: RoundPlan) -> None:
    rows = (RowReport(0, ProposalKind.HIT, plan.num_draft, 1, True, 2),)
    for number in range(num_rounds):
        pace.see(RoundReport(number, rows, plan, 0.02, 0.010, draft_s, 0.0), 1)


def test_a_draft_that_is_slow_beside_the_target_is_so_in_ssd_alone() -> None:
    """Each was measured while the other engine was idle. ssd was tried again and again."""
    pace = Pace(PRIOR)
    prepared(pace, 0.010, 60, RoundPlan("ssd", 4, 8))  # five calls of 1 ms
    assert pace.times("ssd").draft_beside.seconds(1, 1) == pytest.approx(0.002, rel=0.02)
    assert pace.times("sd").draft.seconds(1, 1) < 0.0013


def test_drafting_by_another_plan_says_nothing_of_this_ones() -> None:
    """What a round of ssd verifies was drafted under the plan before."""
    pace = Pace(PRIOR)
    for _ in range(20):
        prepared(pace, 0.002, 1, RoundPlan("ssd", 4, 8))  # which itself takes five calls
        prepared(pace, 0.005, 1, RoundPlan("ssd", 1, 8))
    assert pace.times("ssd").draft_beside.seconds(1, 1) == 0.001


def test_rounds_in_which_nothing_was_drafted_say_nothing_of_the_draft() -> None:
    """Texts near their ends have no room for drafts: the draft looked endlessly slow."""
    pace = Pace(PRIOR)
    rows = (RowReport(0, ProposalKind.NONE, 0, 0, None, 1),)
    for number in range(20):
        pace.see(RoundReport(number, rows, RoundPlan("sd", 4), 0.011, 0.010, 0.0001, 0.0001), 1)
    assert pace.times("sd").draft.seconds(1, 1) == 0.001


def test_gaps_are_learnt_by_mode_and_a_new_modes_is_like_the_others() -> None:
    pace = Pace(PRIOR)
    for _ in range(80):
        pace.see_gap("sd", 0.0010)
    assert pace.gap_s("sd") == pytest.approx(0.0010, rel=0.02)
    assert pace.gap_s("ssd") == pace.gap_s("sd")
    assert pace.times("ssd").exchange_s == pace.gap_s("sd")


def test_a_pause_between_two_rounds_is_no_gap() -> None:
    pace = Pace(PRIOR)
    before = pace.gap_s("ar")
    pace.see_gap("ar", 60.0)
    assert pace.gap_s("ar") <= before + (OUTLIER * before + GAP_S) / 8
    pace.see_gap("ar", -1.0)
    assert pace.gap_s("ar") > 0
