"""How long rounds take: calibrated step times, corrected by what was seen since.

A machine slows down and recovers: other programs, heat. That shows in every call alike, while a
call that was measured wrongly, or runs otherwise between calls of another engine than alone, shows
in one kind of round only. So each engine's times carry two factors, one for all kinds and one for
each (``choices.kind_of``). Both follow what is seen over some tens of rounds. A kind's first rounds
weigh more: calibration counts as one round, and what was seen before rounds of another kind as
RETURNED. A drift of plain rounds is taken for everybody's.

Long texts make each call slower, in steps: a call pays for every cache row it is given, its *span*.
That is no drift either. A third factor belongs to the span, and what is a kind's own is known by
span. While all of it was taken for drift, the first drafts behind a change from long texts to short
ones were timed against plain rounds of the long ones, and looked like gains for many texts.

No round counts for far more than was expected: the system's hiccups, a tenth of all rounds beside
other programs, are not the machine's pace. What a round takes beyond its engines (the host,
hand-overs) is added by kind.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from runtime.spec.controller.choices import kind_of, preparing_s
from runtime.spec.cost import PairTimes
from runtime.spec.cost.times import Scaled
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport

FOLLOW, SHARED = 1 / 8, 3 / 4
"""How far the factors move towards what one round of speculation showed, and how much of that is
taken for every kind's."""
RETURNED = 2
"""Rounds that what was seen of a kind counts for, where another one ran meanwhile."""
NEW_SPAN = 8
"""Rounds of a span that was not seen before which teach what it costs, and nothing else."""
OUTLIER, HICCUP = 2.0, 1.25
"""A kind's first rounds count as so far from what was expected at most, later ones as so far."""
LOOKUPS = kind_of(RoundPlan("sd", drafter=Drafter.LOOKUP))
GAP_S = 0.0003
"""Seconds a round spends outside its engines, until they are measured."""


class Pace:
    """Corrected times. ``prior`` are the calibrated ones."""

    def __init__(self, prior: PairTimes) -> None:
        self._prior = prior
        self._target, self._draft = _Factors(), _Factors()
        self._gaps: dict[str, float] = {}
        self._least_gap_s = max(GAP_S, prior.exchange_s)
        self._span = 0
        self._prepared = PLAIN  # how the outcomes of the next round were prepared, if that is known

    def times(self, kind: str) -> PairTimes:
        """The times to expect of such a round."""
        prior = self._prior
        target, draft = self._target.of(kind), self._draft.of(kind)
        return replace(
            prior,
            target=Scaled(prior.target, target),
            target_beside=Scaled(prior.target_beside, target),
            draft=Scaled(prior.draft, draft),
            draft_beside=Scaled(prior.draft_beside, draft),
            exchange_s=self.gap_s(kind),
        )

    def plain_s(self, batch: int) -> float:
        """Seconds of a plain round."""
        return self._target.of("ar") * self._prior.target.seconds(batch, 1) + self.gap_s("ar")

    def gap_s(self, kind: str) -> float:
        """Seconds of such a round outside its engines. A kind that was not seen hands over as often
        as others, and oftener than plain rounds do."""
        known = self._gaps.get(kind)
        return max([self._least_gap_s, *self._gaps.values()]) if known is None else known

    def see(self, report: RoundReport, batch: int, *, is_cut: bool = False) -> None:
        """A round of so many texts; ``is_cut``: proposals may end before K. One that was held up by
        a draft that had to catch up says nothing."""
        plan, rows, prepared = report.plan, report.rows, self._prepared
        self._prepared = PLAIN
        if self._has_moved(report.span):
            return  # the caches were laid out anew in that round
        is_alone = report.is_steady or report.seconds is None  # nothing was read beside it
        if report.verify_s <= 0 or not is_alone or any(row.is_behind for row in rows):
            return
        kind = kind_of(plan)
        if plan.mode == "ar":
            self.see_target(kind, self._plain_verify_s(batch), report.verify_s)
        else:
            self._see_speculation(report, kind, prepared, batch, is_cut=is_cut)
        if report.seconds is not None and report.is_steady:
            self.see_gap(kind, report.seconds - report.verify_s - report.exposed_s)

    def _has_moved(self, span: int) -> bool:
        """Whether calls are given another number of cache rows than before. All times are of the
        last one's from then on."""
        if span in (0, self._span):
            return False
        is_first, self._span = not self._span, span
        for factors in (self._target, self._draft):
            factors.move(span, is_first=is_first)
        return not is_first

    def _plain_verify_s(self, batch: int) -> float:
        return self._target.of("ar") * self._prior.target.seconds(batch, 1)

    def _see_speculation(
        self, report: RoundReport, kind: str, prepared: RoundPlan, batch: int, *, is_cut: bool
    ) -> None:
        plan, rows, times = report.plan, report.rows, self.times(kind)
        is_by_model = plan.drafter is not Drafter.LOOKUP
        width = 1 + max(row.num_drafted for row in rows)
        if is_cut and plan.mode == "sd" and is_by_model:
            width = 1 + plan.num_draft  # what shorter ones save is the kind's own pace
        target = times.target_beside if plan.mode == "ssd" else times.target
        self.see_target(kind, target.seconds(batch, width), report.verify_s)
        if not is_by_model:
            return
        sources = {row.kind for row in rows}
        copies = ProposalKind.LOOKUP in sources
        if plan.mode == "sd" and not copies:
            expected_s = (width - 1) * times.draft.seconds(batch, 1)
            self.see_draft(kind, expected_s, report.draft_s)
        elif plan.mode == "ssd":
            if prepared == plan and ProposalKind.JIT not in sources:
                self.see_draft(kind, preparing_s(times, batch, plan), report.draft_s)
            if not copies:  # those take a root pass of any width
                self._prepared = plan

    def see_target(self, kind: str, expected_s: float, seconds: float) -> None:
        """A verification that ``times(kind)`` expected to take ``expected_s``."""
        self._target.see(kind, expected_s, seconds)

    def see_draft(self, kind: str, expected_s: float, seconds: float) -> None:
        """A round's drafting that ``times(kind)`` expected to take ``expected_s``."""
        if seconds > 0 and expected_s > 0:
            self._draft.see(kind, expected_s, seconds)

    def see_gap(self, kind: str, seconds: float) -> None:
        """What a round took beyond the engines that it waited for."""
        known = self.gap_s(kind)
        seen = min(max(0.0, seconds), OUTLIER * known + GAP_S)
        self._gaps[kind] = known + FOLLOW * (seen - known)


class _Factors:
    """One engine's, of calibrated times."""

    def __init__(self) -> None:
        self._shared = 1.0
        self._span = 0
        self._of_span = {0: 1.0}
        self._num_new = 0  # rounds that are to teach this span's factor yet
        self._own: dict[tuple[str, int], float] = {}
        self._latest_own: dict[str, float] = {}  # whatever the span
        self._num_seen: Counter[str] = Counter()
        self._last = ""

    def of(self, kind: str) -> float:
        return self._shared * self._of_span[self._span] * self._own_of(kind)

    def _own_of(self, kind: str) -> float:
        """Lookups that find nothing are plain rounds: until they are seen they are as those."""
        known = self._own.get((kind, self._span), self._latest_own.get(kind))
        if known is None and kind == LOOKUPS:
            known = self._own_of("ar")
        return 1.0 if known is None else known

    def move(self, span: int, *, is_first: bool) -> None:
        """Calls are given so many rows from now on. A span that was never seen is as the one before
        until it is; the first one's factor is 1, for what it differs from calibration is for the
        kinds to find out."""
        if span not in self._of_span:
            self._of_span[span] = self._of_span[self._span]
            self._num_new = 0 if is_first else NEW_SPAN
        self._span, self._last = span, ""

    def see(self, kind: str, expected_s: float, seconds: float) -> None:
        ratio = seconds / max(expected_s, 1e-9)
        if self._num_new:
            weight = 1 / (1 + NEW_SPAN - self._num_new)
            self._of_span[self._span] *= _within(OUTLIER, ratio) ** weight
            self._num_new -= 1
            return
        if kind != self._last:
            # What was taken for every kind's meanwhile may have been the other one's alone.
            self._num_seen[kind] = min(self._num_seen[kind], RETURNED)
            self._last = kind
        self._num_seen[kind] += 1
        weight = max(FOLLOW, 1 / (1 + self._num_seen[kind]))
        ratio = _within(HICCUP if weight == FOLLOW else OUTLIER, ratio)
        # A kind's first rounds show how it differs; later, all of it drifts together.
        shared = 0.0
        if weight == FOLLOW:
            shared = 1.0 if kind == "ar" else SHARED
            self._shared *= ratio ** (weight * shared)
        if shared < 1.0:
            own = self._own_of(kind) * ratio ** (weight * (1 - shared))
            self._own[kind, self._span] = self._latest_own[kind] = own


def _within(most: float, ratio: float) -> float:
    return min(most, max(1 / most, ratio))
