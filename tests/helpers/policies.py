"""Policies for tests: what the rounds shall be, said beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat

from runtime.spec.plan import Outlook, RoundPlan, RoundReport


class Scripted:
    """The given plans in turn, for ever or, ``once``, the last of them from then on; K and W cut to
    what the pair was loaded for. ``reports`` are those it was told, ``reasons`` why it failed."""

    def __init__(
        self, plans: Sequence[RoundPlan], num_draft: int, num_branches: int, *, once: bool = False
    ) -> None:
        cut = [
            replace(
                plan,
                num_draft=min(plan.num_draft, num_draft),
                num_branches=min(plan.num_branches, num_branches),
            )
            for plan in plans
        ]
        self._coming = chain(cut, repeat(cut[-1])) if once else chain.from_iterable(repeat(cut))
        self.asked: list[RoundPlan] = []
        self.reports: list[RoundReport] = []
        self.reasons: list[str] = []

    watches_lookups = True

    def next_round(self, look: Callable[[], Outlook]) -> RoundPlan:  # noqa: ARG002
        self.asked.append(next(self._coming))
        return self.asked[-1]

    def joins(self, num_prompt: int, num_left: int) -> bool:  # noqa: ARG002
        return True

    def observe(self, report: RoundReport) -> None:
        self.reports.append(report)

    def failed(self, reason: str) -> None:
        self.reasons.append(reason)
