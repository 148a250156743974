"""Whether speculation pays, and whether a device of its own for the draft does.

The draft's device must earn its keep: tokens a second for each device, against the same devices
without it. With h = (t + d) / t, d seconds of drafting beside t of verification, and every outcome
prepared, ``ssd`` is h times ``sd``; so a draft device for every n of the target pays where h is at
least (n + 1) / n, that is where drafting takes at least 1 / (n + 1) of a round of ``sd``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtime.spec.cost.laws import Laws
from runtime.spec.cost.prediction import Prediction, predict
from runtime.spec.cost.search import Space, best_of_mode
from runtime.spec.cost.times import PairTimes
from runtime.spec.plan import PLAIN

HIGHEST = 0.99
"""Acceptance that no pair of two models exceeds."""
CLEARLY = 1 + 1e-6
"""Equal but for rounding does not pay."""
STEPS = 33
BISECTIONS = 12
"""0.99 / 33 / 2 ** 12 is far below what acceptance can be known to."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What the modes occupy: ``target`` devices in all of them, ``draft`` more in ``ssd``. With
    ``draft`` 0 both engines share the same devices."""

    target: int = 1
    draft: int = 1

    def used_by(self, mode: str) -> int:
        """How many a mode keeps busy. In ``sd`` the draft runs on the target's."""
        return self.target + self.draft if mode == "ssd" else self.target

    def rate_each(self, prediction: Prediction) -> float:
        """Tokens a second for each device."""
        return prediction.tokens_s / self.used_by(prediction.plan.mode)


def least_acceptance(pays: Callable[[float], bool], highest: float = HIGHEST) -> float | None:
    """The acceptance from which on ``pays`` holds, as far as a grid of STEPS can tell; None where
    it holds nowhere on it.

    Searched from above, so that a gain that comes, goes and comes again is not promised for all
    that lies between; then bisected.
    """
    grid = [highest * step / STEPS for step in range(STEPS + 1)]
    above = None
    for at in reversed(grid):
        if pays(at):
            above = at
        elif above is not None:
            return _bisected(pays, at, above)
    return above


def _bisected(pays: Callable[[float], bool], below: float, above: float) -> float:
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        below, above = (below, middle) if pays(middle) else (middle, above)
    return above


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Acceptance of a drafted token from which on a mode, at its best setting, is faster: ``sd``
    and ``ssd`` than plain decoding, ``each`` than both others for each device. None: never."""

    sd: float | None
    ssd: float | None
    each: float | None


def break_even(
    times: PairTimes,
    laws_at: Callable[[float], Laws],
    batch: int,
    space: Space,
    devices: Devices,
) -> BreakEven:
    """Of laws that hang on one acceptance, as ``laws_at`` gives them."""
    plain = predict(times, laws_at(0.0), batch, PLAIN)
    known: dict[tuple[float, str], Prediction] = {}

    def at(acceptance: float, mode: str) -> Prediction:
        key = acceptance, mode
        if key not in known:
            known[key] = best_of_mode(times, laws_at(acceptance), batch, mode, space)
        return known[key]

    def pays(acceptance: float, mode: str) -> bool:
        return at(acceptance, mode).tokens_s > CLEARLY * plain.tokens_s

    def pays_each(acceptance: float) -> bool:
        alone = max(devices.rate_each(plain), devices.rate_each(at(acceptance, "sd")))
        return devices.rate_each(at(acceptance, "ssd")) > CLEARLY * alone

    return BreakEven(
        sd=least_acceptance(lambda acceptance: pays(acceptance, "sd")),
        ssd=least_acceptance(lambda acceptance: pays(acceptance, "ssd")),
        each=least_acceptance(pays_each),
    )
