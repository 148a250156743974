"""What the controller says about itself: one line for each change of mind."""

from __future__ import annotations

from collections.abc import Callable

from runtime.spec.controller.choices import spelt
from runtime.spec.controller.forecasts import Forecasts
from runtime.spec.plan import PLAIN, RoundPlan

SPACING = 64
"""Rounds between two lines that are told: a few sentences."""


class Changes:
    """``note`` is the last line, told or not."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.note = ""
        self._tell = tell
        self._told_at: int | None = None
        self._num_untold = 0

    def add(self, round_number: int, line: str) -> None:
        """A change of mind before that round."""
        self.note = line
        self._num_untold += 1
        self.tell_rest(round_number)

    def tell_rest(self, round_number: int) -> None:
        """Tell the last change if it is untold and the time has come. Called before each round, so
        what was told last is never wrong for long."""
        if self._tell is None or not self._num_untold:
            return
        if self._told_at is not None and round_number - self._told_at < SPACING:
            return
        num_others = self._num_untold - 1
        between = f" ({num_others} changes in between)" if num_others else ""
        self._tell(self.note + between)
        self._told_at, self._num_untold = round_number, 0


def sentence(plan: RoundPlan, why: str, forecasts: Forecasts) -> str:
    """What is run now and why, with the figures that speak for it or against it."""
    plain = forecasts.plain
    others = [forecasts.best, forecasts.rest] if forecasts.plans else [forecasts.rest]
    found = [f"{spelt(each.plan)} {each.tokens_s:.0f}" for each in others if each.plan != PLAIN]
    first, *rest = [*found, f"ar {plain.tokens_s:.0f}"]
    accepted = []
    if forecasts.plans:
        accepted.append(f"first drafts accepted {forecasts.laws.acceptance:.0%}")
    if forecasts.lookup is not None:
        accepted.append(f"first copies {forecasts.copies.acceptance:.0%}")
    predicted = ", ".join([f"{first} tokens/s", *rest])
    return f"auto runs {spelt(plan)} ({why}; predicted: {predicted}; {', '.join(accepted)})"
