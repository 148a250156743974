"""What the controller says to whoever runs a server: whether speculation pays."""

from __future__ import annotations

import pytest

from runtime.spec.controller import Choices, Controller
from runtime.spec.controller.forecasts import ENTER
from runtime.spec.cost import ByTokens, PairTimes, laws_of_acceptance
from runtime.spec.drafter import Drafter
from tests.helpers.scripted_pair import ScriptedPair

TIMES = PairTimes.apart(
    ByTokens((1, 64), (0.0140, 0.0160)), ByTokens((1, 64), (0.0011, 0.0016)), 0.0001
)
SD = Choices(("sd",), 4)


def controller(prior: float, choices: Choices = SD) -> Controller:
    return Controller(TIMES, laws_of_acceptance(prior), choices)


@pytest.mark.parametrize(("acceptance", "prior"), [(0.8, 0.05), (0.0, 0.8)])
def test_the_speedup_is_the_one_that_decides(acceptance: float, prior: float) -> None:
    """Above the margin it speculates, below one it does not: as it was learnt, not as measured."""
    policy = controller(prior)
    assert (policy.speedups["model"] > 1) == (prior > acceptance)
    ride = ScriptedPair(TIMES, lambda _: acceptance).run(policy, 3000)
    is_used = ride.modes[-100:].count("sd") > 50
    found = policy.speedups["model"]
    assert (found > ENTER) if is_used else (found < 1)
    assert is_used == (acceptance > prior)


def test_lookups_have_a_speedup_of_their_own() -> None:
    both = Choices(("sd",), 4, drafters=(Drafter.BOTH, Drafter.LOOKUP))
    assert set(controller(0.5).speedups) == {"model"}
    assert set(controller(0.5, both).speedups) == {"model", "lookup"}
    alone = Choices(("sd",), 4, drafters=(Drafter.LOOKUP,))
    assert set(controller(0.5, alone).speedups) == {"lookup"}


def test_at_rest_a_slower_machine_makes_no_speedup() -> None:
    """The draft's plan was forecast before, plain decoding since: 1.4 was told of a draft that was
    no use, and "predicted: sd 137 tokens/s, ar 89" stood in the note."""
    policy = controller(0.3)
    pair = ScriptedPair(TIMES, lambda _: 0.0, slow=lambda number: 1.0 if number < 400 else 2.0)
    pair.run(policy, 390)
    before = policy.speedups["model"]
    ride = pair.run(policy, 60)
    assert set(ride.modes) == {"ar"}
    assert policy.speedups["model"] == pytest.approx(before, rel=0.01)
