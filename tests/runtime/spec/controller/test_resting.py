"""Rounds of lookups, with a look at plain decoding between."""

from __future__ import annotations

import pytest

from runtime.spec.controller.resting import DRIFT_ROUNDS, Resting
from runtime.spec.drafter import Drafter
from runtime.spec.plan import PLAIN, RoundPlan

LOOKUP = RoundPlan("sd", 3, drafter=Drafter.LOOKUP)


def course(resting: Resting, num_rounds: int, plain_s: float = 1.0) -> str:
    """A letter a round: c is a copy, p plain."""
    plans = [resting.next_round(LOOKUP, plain_s) for _ in range(num_rounds)]
    return "".join("p" if plan is PLAIN else "c" for plan in plans)


def test_so_many_plain_rounds_come_after_so_many_of_lookups() -> None:
    resting = Resting(check_every=5, check_rounds=2)
    resting.next_round(PLAIN, 1.0)
    assert course(resting, 17) == "cccccppcccccppccc"


@pytest.mark.parametrize(("plain_s", "expected"), [(1.0, "c"), (1.02, "c"), (1.1, "p"), (0.9, "p")])
def test_a_plain_round_that_is_believed_to_have_changed_is_looked_at_at_once(
    plain_s: float, expected: str
) -> None:
    """Nobody sees that it has while lookups run, and what they gain is measured by it."""
    resting = Resting(check_every=99, check_rounds=2)
    resting.next_round(PLAIN, 1.0)
    course(resting, DRIFT_ROUNDS - 2)
    assert course(resting, 1, plain_s) == "c", "not so soon after"
    assert course(resting, 1, plain_s) == expected


def test_texts_that_repeat_nothing_any_more_end_a_look_too() -> None:
    resting = Resting(check_every=1, check_rounds=9)
    resting.next_round(PLAIN, 1.0)
    assert course(resting, 2) == "cp"
    resting.next_round(PLAIN, 1.0)
    assert course(resting, 1) == "c"
