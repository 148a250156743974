"""When rounds without the draft engine are copies from the text."""

from __future__ import annotations

import pytest

from runtime.spec.controller import Choices
from runtime.spec.controller.copies import Realised
from runtime.spec.controller.forecasts import ENTER, Forecasts
from runtime.spec.cost import ByTokens, PairTimes, laws_of_acceptance
from runtime.spec.drafter import Drafter
from runtime.spec.lookup import Looked
from runtime.spec.plan import PLAIN

TIMES = PairTimes.apart(ByTokens((1, 5), (0.010, 0.012)), ByTokens((1,), (0.001,)), 0.0001)


def test_copies_that_are_made_go_on_until_they_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one threshold for both, rounds went to and fro at it."""
    choices = Choices(("sd",), 4, drafters=(Drafter.LOOKUP,))
    forecasts = Forecasts(TIMES, laws_of_acceptance(0.3), choices, 1)
    for _ in range(300):
        forecasts.copies.see(Looked(6, 4, 4))
    forecasts.look_at_rest()
    assert forecasts.copying_gain > ENTER
    forecast = forecasts.speedups["lookup"]
    for gain, is_copying in ((1.01, True), (0.99, False), (1.01, False), (ENTER + 0.01, True)):
        monkeypatch.setattr(Realised, "factor", gain / forecast)
        forecasts.look_at_rest()
        assert (forecasts.rest.plan is not PLAIN) is is_copying
