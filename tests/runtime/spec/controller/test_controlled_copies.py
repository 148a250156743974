"""Lookups under the controller: known from plain rounds, so done without a trial."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.controller import Choices, Controller
from runtime.spec.controller.choices import floor_of, kind_of, spelt
from runtime.spec.controller.copies import Copies, Realised, Yield
from runtime.spec.controller.policy import CHECK_EVERY, CHECK_ROUNDS, COPY_CHECK_EVERY
from runtime.spec.cost import ByTokens, Grid, PairTimes, laws_of_acceptance
from runtime.spec.drafter import Drafter
from runtime.spec.lookup import LONGEST, Looked
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.scripted_pair import ScriptedPair

CORES = PairTimes.apart(
    ByTokens((1, 2, 5), (0.0075, 0.0086, 0.0110)),
    ByTokens((1, 12, 64), (0.001, 0.003, 0.008)),
    3e-4,
)
ALONE = Choices(("sd",), 4, drafters=(Drafter.LOOKUP,))
EITHER = Choices(("sd",), 4, drafters=(Drafter.BOTH, Drafter.LOOKUP))


def controller(choices: Choices, prior: float = 0.05) -> Controller:
    return Controller(CORES, laws_of_acceptance(prior), choices)


def is_copying(plan: RoundPlan) -> bool:
    return plan.drafter is Drafter.LOOKUP


@pytest.mark.parametrize("choices", [ALONE, EITHER])
def test_a_text_that_repeats_itself_is_copied_without_a_trial(choices) -> None:
    policy = controller(choices)
    pair = ScriptedPair(CORES, lambda _: 0.0, match=lambda _: 12, copied=0.9)
    ride = pair.run(policy, 400)
    copying = [number for number, plan in enumerate(ride.plans) if is_copying(plan)]
    assert copying[0] < 40
    assert PLAIN not in ride.plans[copying[0] : copying[0] + 40]
    assert sum(map(is_copying, ride.plans)) > 300
    assert ride.against_plain(60) > 2.0
    assert policy.note.startswith("auto runs sd lookup K 4 (")
    assert "first copies" in policy.note


def test_a_text_without_repetition_is_decoded_plainly_and_costs_nothing() -> None:
    policy = controller(ALONE)
    ride = ScriptedPair(CORES, lambda _: 0.0, match=lambda _: 0).run(policy, 500)
    assert set(ride.plans) == {PLAIN}
    assert policy.note.startswith("auto runs ar (by calibration")


def test_copies_that_are_wrong_end_soon_and_cost_little() -> None:
    """Long matches used to be right: what they are now shows in the same rounds."""
    pair = ScriptedPair(
        CORES, lambda _: 0.0, match=lambda number: 12 if number > 300 else 0, copied=0.0
    )
    ride = pair.run(controller(ALONE), 1500)
    assert ride.against_plain(300) >= 0.97
    assert sum(map(is_copying, ride.plans[600:])) < 10


def test_copying_returns_with_the_text_that_repeats_itself() -> None:
    pair = ScriptedPair(
        CORES,
        lambda _: 0.0,
        match=lambda number: 14 if (number // 300) % 2 else 0,
        copied=0.95,
    )
    ride = pair.run(controller(ALONE), 1800)
    for first in (300, 900, 1500):
        assert sum(map(is_copying, ride.plans[first + 40 : first + 300])) > 240
        assert ride.against_plain(first, first + 300) > 2.0
    for first in (600, 1200):
        assert ride.against_plain(first, first + 300) >= 0.97


def test_plain_decoding_is_looked_at_while_copies_are_made() -> None:
    ride = ScriptedPair(CORES, lambda _: 0.0, match=lambda _: 12, copied=0.9).run(
        controller(ALONE), 8 * COPY_CHECK_EVERY
    )
    late = ride.plans[2 * COPY_CHECK_EVERY :]
    assert late.count(PLAIN) in range(4 * CHECK_ROUNDS, 8 * CHECK_ROUNDS)


def test_plain_decoding_is_looked_at_though_every_draft_is_a_copy() -> None:
    """Copies say nothing of the draft, so the next check never came."""
    policy = controller(Choices(("sd",), 4, drafters=(Drafter.BOTH,)), prior=0.9)
    pair = ScriptedPair(CORES, lambda _: 0.9, match=lambda _: 16, copied=0.9)
    late = pair.run(policy, 6 * CHECK_EVERY).plans[CHECK_EVERY:]
    assert late.count(PLAIN) in range(3 * CHECK_ROUNDS, 6 * CHECK_ROUNDS)


@pytest.mark.parametrize("drafters", [(Drafter.LOOKUP,), (Drafter.BOTH, Drafter.LOOKUP)])
def test_a_text_alone_is_copied_where_a_full_batch_could_not_pay_for_it(drafters) -> None:
    """A pair loaded for eight rows held each copied token to what it costs eight of them."""
    step = ((0.0075, 0.0110), (0.020, 0.080))
    times = PairTimes.apart(Grid((1, 8), (1, 5), step), CORES.draft, 3e-4)
    policy = Controller(
        times, laws_of_acceptance(0.05), Choices(("sd",), 4, drafters=drafters), batch=8
    )
    ride = ScriptedPair(times, lambda _: 0.0, match=lambda _: 5, copied=0.6).run(policy, 600)
    copying = [plan for plan in ride.plans if plan is not PLAIN]
    assert len(copying) > 400
    assert {plan.floor for plan in copying} == {floor_of(times, 1, 4)}
    full = ScriptedPair(times, lambda _: 0.0, match=lambda _: 5, copied=0.6, batch=8)
    assert not any(map(is_copying, full.run(policy, 300).plans[50:]))


def test_where_the_account_ends_the_copies_the_note_says_so() -> None:
    """It said that copies did not pay, beside a figure that said they did."""
    slow = PairTimes.apart(ByTokens((1, 2, 5), (0.0075, 0.0140, 0.0240)), CORES.draft, 3e-4)
    policy = controller(ALONE)
    pair = ScriptedPair(slow, lambda _: 0.0, match=lambda _: 5, copied=0.5)
    ended = []
    for _ in range(600):
        before = policy.note
        pair.run(policy, 1)
        if policy.note != before and policy.note.startswith("auto runs ar"):
            ended.append(policy.note)
    assert ended
    for note in ended:
        looks_faster = "sd lookup" in note
        assert looks_faster == ("the last copies were slower" in note)


def test_where_both_pay_the_draft_is_tried_and_kept() -> None:
    """Copies now and then, and a draft that is right nearly always."""
    pair = ScriptedPair(
        CORES, lambda _: 0.9, match=lambda number: 9 if number % 8 == 0 else 0, copied=0.9
    )
    ride = pair.run(controller(EITHER), 2500)
    assert {plan.drafter for plan in ride.plans[-200:] if plan is not PLAIN} == {Drafter.BOTH}
    assert ride.against_plain(1500) > 1.8


def test_the_draft_is_not_taken_up_where_copies_alone_are_better() -> None:
    """It beats plain decoding; what it would replace is not that."""
    pair = ScriptedPair(CORES, lambda _: 0.45, match=lambda _: 16, copied=0.97)
    ride = pair.run(controller(EITHER), 1500)
    assert sum(map(is_copying, ride.plans[500:])) > 850


@given(
    match=st.lists(st.integers(0, LONGEST), min_size=1, max_size=40),
    copied=st.floats(0.0, 1.0),
    accept=st.floats(0.0, 1.0),
    choices=st.sampled_from([ALONE, EITHER]),
    lag=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_account_is_not_overdrawn_whatever_the_text_repeats(
    match, copied, accept, choices, lag, seed
) -> None:
    policy = controller(choices, prior=0.5)
    pair = ScriptedPair(
        CORES,
        lambda _: accept,
        match=lambda number: match[(number // 20) % len(match)],
        copied=copied,
        lag=lag,
        rounds_behind=0,
        seed=seed,
    )
    for _ in range(300):
        pair.run(policy, 1)
        assert policy.credit.balance_s >= -1e-9


def test_copies_that_yield_less_than_they_promise_are_given_up() -> None:
    """Matches are as long as ever; a round takes longer than calls that were measured alone, and
    the first ones tell."""
    slow = PairTimes.apart(ByTokens((1, 2, 5), (0.0075, 0.0140, 0.0240)), CORES.draft, 3e-4)
    pair = ScriptedPair(slow, lambda _: 0.0, match=lambda _: 5, copied=0.5)
    ride = pair.run(controller(ALONE), 1500)
    assert 0 < sum(map(is_copying, ride.plans)) < 5
    assert ride.against_plain() >= 0.97


# --- what is learnt of them ---


def test_a_forecast_is_corrected_by_what_came_of_it() -> None:
    found = Realised()
    assert found.factor == 1.0
    for _ in range(200):
        found.see(1, 2.0)
    assert 0.5 < found.factor < 0.8
    for _ in range(400):
        found.see(2, 2.0)
    assert found.factor == pytest.approx(1.0, abs=0.01)


def seen(*lookups: Looked, times: int = 1) -> Copies:
    copies = Copies()
    for _ in range(times):
        for each in lookups:
            copies.see(each)
    return copies


def test_before_anything_was_seen_nothing_is_promised() -> None:
    found = Copies().forecast(4, 0.1)
    assert found.widths[0] == 1.0
    assert found.share == 0.0
    assert Copies().acceptance == 0.0


def test_shares_follow_the_matches_that_a_text_offers() -> None:
    copies = seen(Looked(0, 0, 0), Looked(10, 4, 4), times=60)
    found = copies.forecast(4, 0.05)
    assert found.share == pytest.approx(0.5, abs=0.1)
    assert found.widths[4] == pytest.approx(found.share)
    assert 4.0 < found.tokens <= 5.0
    assert copies.acceptance > 0.9


def test_copies_that_promise_less_than_the_model_are_left_to_it() -> None:
    copies = seen(Looked(10, 4, 1), times=200)
    assert copies.forecast(4, 0.0, other=0.5).share > 0.8
    assert copies.forecast(4, 0.0, other=3.0).share == 0.0


def test_a_floor_cuts_a_copy_where_it_becomes_unlikely() -> None:
    copies = seen(Looked(1, 4, 0), times=300)
    assert copies.forecast(4, 0.3).share == 0.0
    assert copies.forecast(4, 0.0).share > 0.8


def test_another_text_may_repeat_itself_less() -> None:
    copies = seen(Looked(12, 4, 4), times=100)
    before = copies.forecast(4, 0.05).share
    copies.begin_text(1)
    for _ in range(4):
        copies.see(Looked(0, 0, 0))
    assert copies.forecast(4, 0.05).share < before - 0.05


def test_counts_stay_finite_however_long_it_runs() -> None:
    """Weights grow by a power of two each 32 places."""
    copies = seen(Looked(5, 2, 1), Looked(0, 0, 0), times=30_000)
    assert copies.forecast(2, 0.0).share == pytest.approx(0.5, abs=0.05)


def test_texts_that_settle_no_lookup_leave_the_counts_finite() -> None:
    """Each begins with a fading: behind some hundred answers of one copied token all was nan."""
    copies = seen(Looked(5, 2, 1), times=50)
    for _ in range(2000):
        copies.begin_text(1)
    copies.see(Looked(5, 2, 1))
    assert 0.0 < copies.forecast(2, 0.0).share < 1.0


@given(
    widths=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).filter(lambda each: sum(each) > 0),
    batch=st.integers(1, 5),
)
def test_a_rounds_width_is_its_widest_rows(widths, batch) -> None:
    """Against every combination of rows, enumerated."""
    from itertools import product
    from math import prod

    shares = tuple(each / sum(widths) for each in widths)
    seconds = tuple(float(place + 1) for place in range(len(shares)))
    expected = sum(
        prod(shares[row] for row in rows) * seconds[max(rows)]
        for rows in product(range(len(shares)), repeat=min(batch, 3))
    )
    assert Yield(shares, 1.0).most_s(seconds, min(batch, 3)) == pytest.approx(expected)


# --- the plans ---


def test_plans_name_their_drafter() -> None:
    lookup = EITHER.lookup(0.2)
    assert lookup == RoundPlan("sd", 4, drafter=Drafter.LOOKUP, floor=0.2)
    assert {plan.drafter for plan in EITHER.plans()} == {Drafter.BOTH}
    assert ALONE.plans() == []
    assert Choices(("sd",), 4).lookup(0.2) is None
    assert Choices(("ssd",), 4, 8, drafters=(Drafter.BOTH, Drafter.LOOKUP)).lookup(0.2) is None
    assert spelt(lookup) == "sd lookup K 4"
    assert kind_of(RoundPlan("ssd", 4, 8)) == "ssd"
    assert kind_of(RoundPlan("ssd", 4, 8, drafter=Drafter.BOTH)) == "ssd both"


def test_the_floor_is_what_one_more_token_costs() -> None:
    assert floor_of(CORES, 1, 4) == pytest.approx(0.0011 / 0.0075, abs=1e-3)
    steep = PairTimes.apart(ByTokens((1, 2, 3), (0.010, 0.011, 0.014)), ByTokens((1,), (0.001,)))
    assert floor_of(steep, 1, 2) == 0.3
    flat = PairTimes.apart(ByTokens((1,), (0.01,)), ByTokens((1,), (0.001,)))
    assert floor_of(flat, 1, 4) == 0.0
