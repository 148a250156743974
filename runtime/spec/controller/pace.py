"""How long rounds take: calibrated step times, corrected by what was seen since.

A machine slows down and recovers: other programs, heat. That shows in every call alike, while a
call that was measured wrongly, or runs otherwise between calls of another engine than alone, shows
in one mode only. So each engine's times carry two factors, one for all modes and one for each. Both
follow what is seen over some tens of rounds. A mode's first rounds weigh more: calibration counts
as one round, and what was seen before rounds of another mode as RETURNED. No round counts for more
than OUTLIER times what was expected: the system's hiccups are not the machine's pace. What a round
takes beyond its engines (the host, hand-overs) is added by mode.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from runtime.spec.controller.choices import preparing_s
from runtime.spec.cost import CallTimes, PairTimes
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import PLAIN, RoundReport

FOLLOW, SHARED = 1 / 8, 3 / 4
"""How far the factors move towards what one round showed, and how much of that is every mode's."""
RETURNED = 2
"""Rounds that what was seen of a mode counts for, where another one ran meanwhile."""
OUTLIER = 2.0
GAP_S = 0.0003
"""Seconds a round spends outside its engines, until they are measured."""


class Pace:
    """Corrected times. ``prior`` are the calibrated ones."""

    def __init__(self, prior: PairTimes) -> None:
        self._prior = prior
        self._target, self._draft = _Factors(), _Factors()
        self._gaps: dict[str, float] = {}
        self._prepared = PLAIN  # how the outcomes of the next round were prepared, if that is known

    def times(self, mode: str) -> PairTimes:
        """The times to expect of a round in that mode."""
        prior = self._prior
        target, draft = self._target.of(mode), self._draft.of(mode)
        return replace(
            prior,
            target=Scaled(prior.target, target),
            target_beside=Scaled(prior.target_beside, target),
            draft=Scaled(prior.draft, draft),
            draft_beside=Scaled(prior.draft_beside, draft),
            exchange_s=self.gap_s(mode),
        )

    def gap_s(self, mode: str) -> float:
        """Seconds of a round outside its engines."""
        known = self._gaps.values()
        default = sum(known) / len(known) if known else max(GAP_S, self._prior.exchange_s)
        return self._gaps.get(mode, default)

    def see(self, report: RoundReport, batch: int, *, is_cut: bool = False) -> None:
        """A round of so many texts; ``is_cut``: proposals may end before K. One that was held up by
        a draft that had to catch up says nothing."""
        plan, rows, prepared = report.plan, report.rows, self._prepared
        self._prepared = PLAIN
        if report.verify_s <= 0 or any(row.is_behind for row in rows):
            return
        times, mode = self.times(plan.mode), plan.mode
        width = 1 + max(row.num_drafted for row in rows)
        if is_cut and mode == "sd":
            width = 1 + plan.num_draft  # what shorter ones save is the mode's own pace
        target = times.target_beside if mode == "ssd" else times.target
        self.see_target(mode, target.seconds(batch, width), report.verify_s)
        kinds = {row.kind for row in rows}
        if mode == "sd":
            expected_s = (width - 1) * times.draft.seconds(batch, 1)
            self.see_draft(mode, expected_s, report.draft_s)
        elif mode == "ssd":
            if prepared == plan and ProposalKind.JIT not in kinds:
                self.see_draft(mode, preparing_s(times, batch, plan), report.draft_s)
            if ProposalKind.LOOKUP not in kinds:  # those take a root pass of any width
                self._prepared = plan
        if report.seconds is not None:
            self.see_gap(mode, report.seconds - report.verify_s - report.exposed_s)

    def see_target(self, mode: str, expected_s: float, seconds: float) -> None:
        """A verification that ``times(mode)`` expected to take ``expected_s``."""
        self._target.see(mode, expected_s, seconds)

    def see_draft(self, mode: str, expected_s: float, seconds: float) -> None:
        """A round's drafting that ``times(mode)`` expected to take ``expected_s``."""
        if seconds > 0 and expected_s > 0:
            self._draft.see(mode, expected_s, seconds)

    def see_gap(self, mode: str, seconds: float) -> None:
        """What a round took beyond the engines that it waited for."""
        known = self.gap_s(mode)
        seen = min(max(0.0, seconds), OUTLIER * known + GAP_S)
        self._gaps[mode] = known + FOLLOW * (seen - known)


class _Factors:
    """One engine's, of calibrated times."""

    def __init__(self) -> None:
        self._shared = 1.0
        self._own: dict[str, float] = {}
        self._num_seen: Counter[str] = Counter()
        self._last = ""

    def of(self, mode: str) -> float:
        return self._shared * self._own.get(mode, 1.0)

    def see(self, mode: str, expected_s: float, seconds: float) -> None:
        if mode != self._last:
            # What was taken for every mode's meanwhile may have been the other one's alone.
            self._num_seen[mode] = min(self._num_seen[mode], RETURNED)
            self._last = mode
        self._num_seen[mode] += 1
        weight = max(FOLLOW, 1 / (1 + self._num_seen[mode]))
        # A mode's first rounds show how it differs; later, all of it drifts together.
        shared = SHARED if weight == FOLLOW else 0.0
        ratio = min(OUTLIER, max(1 / OUTLIER, seconds / max(expected_s, 1e-9)))
        self._shared *= ratio ** (weight * shared)
        self._own[mode] = self._own.get(mode, 1.0) * ratio ** (weight * (1 - shared))


@dataclass(frozen=True, slots=True)
class Scaled:
    """``CallTimes`` times a factor."""

    times: CallTimes
    factor: float

    def seconds(self, rows: int, tokens: int) -> float:
        """Of a call of so many rows, and so many tokens a row."""
        return self.factor * self.times.seconds(rows, tokens)
