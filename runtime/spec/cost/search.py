"""The setting that yields the most tokens a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.spec.cost.laws import Laws
from runtime.spec.cost.prediction import Prediction, predict
from runtime.spec.cost.times import PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan

ENOUGH = 0.999
"""Of several settings that come this near to the best one, the smallest: less memory, less work."""


@dataclass(frozen=True, slots=True)
class Space:
    """Settings to choose from: K in ``drafts``, W in ``widths``, what to do after a miss."""

    drafts: Sequence[int]
    widths: Sequence[int]
    fallbacks: Sequence[Fallback] = tuple(Fallback)

    def plans(self, mode: str) -> Iterable[RoundPlan]:
        """All settings of a mode, small ones first."""
        if mode == "ar":
            yield PLAIN
        elif mode == "sd":
            for num_draft in self.drafts:
                yield RoundPlan("sd", num_draft)
        else:
            for num_draft in self.drafts:
                for width in self.widths:
                    for fallback in self.fallbacks:
                        yield RoundPlan("ssd", num_draft, width, fallback)


def up_to(num_draft: int, num_branches: int) -> Space:
    """K from 1 to ``num_draft``, W to ``num_branches`` in steps of a third or so, any fallback."""
    return Space(tuple(range(1, num_draft + 1)), _ladder(num_branches))


def best(times: PairTimes, laws: Laws, batch: int, plans: Iterable[RoundPlan]) -> Prediction:
    """The fastest of ``plans`` (at least one), or the first that is as fast but for 1 - ENOUGH."""
    found = [predict(times, laws, batch, plan) for plan in plans]
    fastest = max(each.tokens_s for each in found)
    return next(each for each in found if each.tokens_s >= ENOUGH * fastest)


def best_of_mode(times: PairTimes, laws: Laws, batch: int, mode: str, space: Space) -> Prediction:
    """The best setting of one mode, W settled to the single branch."""
    found = best(times, laws, batch, space.plans(mode))
    if mode != "ssd":
        return found
    plan = found.plan
    lower = max((width for width in space.widths if width < plan.num_branches), default=0)
    upper = min((width for width in space.widths if width > plan.num_branches), default=lower)
    widths = range(lower + 1, max(upper, plan.num_branches + 1))
    between = Space((plan.num_draft,), widths, space.fallbacks)
    return best(times, laws, batch, between.plans(mode))


def _ladder(most: int) -> tuple[int, ...]:
    steps, width = [], 1
    while width < most:
        steps.append(width)
        width += max(1, width // 3)
    return (*steps, most)
