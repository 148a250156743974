"""What trials and rounds are charged, where the forecasts are plain numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtime.spec.controller.account import STALL, Account
from runtime.spec.controller.credit import SHARE, START_ROUNDS
from runtime.spec.controller.forecasts import Forecast
from runtime.spec.controller.reading import Reading
from runtime.spec.cost import ByTokens, PairTimes
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport

SPECULATING = RoundPlan("sd", 2)
LOST_S, LONGEST_S = 1.0, 2.0
"""What a bad round loses and takes; a plain one takes a second."""
TIMES = PairTimes.apart(ByTokens((1, 3), (1.0, 1.5)), ByTokens((1,), (0.25,)), 0.0)
NUM_ROUNDS = 4
MUCH = 1000
"""Tokens that are left: reading may cost 100 s of them where it is saved for, 6 s where not."""


def account() -> Account:
    """A new one, which covers START_ROUNDS bad rounds."""
    forecasts: Any = SimpleNamespace(
        batch=1,
        lookup=None,
        plain=Forecast(PLAIN, 1.0, 1.0),
        best=Forecast(SPECULATING, 1.5, LONGEST_S),
        least_loss_s=LOST_S,
        pace=SimpleNamespace(gap_s=lambda _kind: 0.0),
        most_lost_s=lambda plan: 0.0 if plan is PLAIN else LOST_S,
        longest_s=lambda _plan: LONGEST_S,
    )
    new = Account(forecasts, Reading(TIMES))
    new.value()
    return new


def may_try(account: Account, reading_s: float = 0.0, *, is_new_text: bool = False) -> bool:
    return account.affords(NUM_ROUNDS, reading_s, MUCH, is_new_text=is_new_text)


def test_a_trial_needs_its_bad_rounds_beside_those_in_flight() -> None:
    new = account()
    assert may_try(new)
    new.launch(SPECULATING)
    assert not may_try(new)
    new.land()
    assert may_try(new)


def test_no_trial_begins_before_the_last_ones_reading_is_paid() -> None:
    """Each would borrow anew, and the debt would grow without end."""
    new = account()
    assert may_try(new, 2.0)
    new.credit.settle(plain_s=1.0, seconds=2.5, is_reading=True)
    assert new.credit.debt_s == 1.5
    assert new.credit.covers(NUM_ROUNDS * LOST_S)
    assert not may_try(new)
    for _ in range(round(1.5 / SHARE) + 1):
        new.credit.settle(plain_s=1.0, seconds=1.0)
    assert may_try(new)


def test_what_is_saved_for_is_the_texts_beginning_until_another_one_begins() -> None:
    """A text grows faster than what is saved: one would save for ever."""
    new = account()
    for reading_s, is_new_text, saving_s in (
        (50.0, False, 50.0),  # nothing was saved for yet
        (80.0, False, 50.0),
        (80.0, True, 80.0),
        (200.0, True, 80.0),  # what is left could not repay it
    ):
        assert not may_try(new, reading_s, is_new_text=is_new_text)
        assert new.saving_s == saving_s


def test_a_round_that_the_system_held_up_is_charged_so_far_and_no_further() -> None:
    """A second's pause of the machine kept speculation off for a minute."""
    new = account()
    row = RowReport(0, ProposalKind.JIT, 2, 0, None, num_emitted=1)
    new.settle(RoundReport(1, (row,), SPECULATING, seconds=1000.0))
    charged = STALL * LONGEST_S - 1.0
    assert new.credit.balance_s == pytest.approx(START_ROUNDS * LOST_S + SHARE - charged)
