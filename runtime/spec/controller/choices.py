"""The plans that a controller chooses from, and which of them are near each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from runtime.spec.cost import PairTimes
from runtime.spec.cost.search import Space
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import MODES, RoundPlan, RowReport

NUM_WIDTHS = 3
"""W, W / 2 and W / 4: what fewer branches save beyond that is little."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What may be planned beside plain rounds: ``modes`` of sd and ssd, up to ``num_draft`` (K)
    tokens and ``num_branches`` (W) outcomes, the ``fallbacks`` of ssd, and the ``drafters``."""

    modes: tuple[str, ...] = ()
    num_draft: int = 0
    num_branches: int = 0
    fallbacks: tuple[Fallback, ...] = (Fallback.ZERO,)
    drafters: tuple[Drafter, ...] = (Drafter.MODEL,)

    def plans(self, floor: float = 0.0) -> list[RoundPlan]:
        """Every plan that drafts with the model. Where it may look up first it does: that is
        chosen for each row anew. ``floor``: see ``RoundPlan``."""
        by_model = [each for each in (Drafter.BOTH, Drafter.MODEL) if each in self.drafters]
        if not by_model:
            return []
        widths = {self.num_branches >> halved for halved in range(NUM_WIDTHS)} - {0}
        space = Space(range(1, self.num_draft + 1), sorted(widths), self.fallbacks)
        found = [plan for mode in self.modes for plan in space.plans(mode)]
        if by_model[0] is Drafter.MODEL:
            return found
        return [replace(plan, drafter=by_model[0], floor=floor) for plan in found]

    def lookup(self, floor: float) -> RoundPlan | None:
        """The plan that runs no draft engine, if there is one."""
        if Drafter.LOOKUP not in self.drafters or "sd" not in self.modes or not self.num_draft:
            return None
        return RoundPlan("sd", self.num_draft, drafter=Drafter.LOOKUP, floor=floor)


def floor_of(times: PairTimes, batch: int, num_draft: int) -> float:
    """The chance of acceptance that pays for one more token in a verification, whichever of up to
    K drafted ones it is: on CPUs the second may cost twice as much as the first."""
    seconds = [times.target.seconds(batch, width) for width in range(1, num_draft + 2)]
    most_s = max((wider - narrower for narrower, wider in pairwise(seconds)), default=0.0)
    return round(min(1.0, max(0.0, most_s / seconds[0])), 3) if seconds[0] > 0 else 0.0


def is_near(plan: RoundPlan, other: RoundPlan) -> bool:
    """They differ in one choice: the mode, W, the fallback, or K by one or two. From ssd to sd with
    any K, or one would be stuck with a K that suits ssd alone."""
    steps = abs(plan.num_draft - other.num_draft)
    if plan.mode != other.mode:
        return steps == 0 or other.mode == "sd"
    same_width = plan.num_branches == other.num_branches
    same_fallback = plan.fallback is other.fallback
    if steps:
        return steps <= 2 and same_width and same_fallback
    return same_width != same_fallback


def longest_round_s(times: PairTimes, batch: int, plan: RoundPlan) -> float:
    """Seconds of a round by that plan if it goes as badly as it can."""
    depth = plan.num_draft
    if plan.mode == "ar":
        return times.exchange_s + times.target.seconds(batch, 1)
    if plan.drafter is Drafter.LOOKUP:
        return times.exchange_s + times.target.seconds(batch, depth + 1)
    if plan.mode == "sd":
        # The first call may also take in the last drafted token of the round before.
        drafting_s = times.draft.seconds(batch, 2) + (depth - 1) * times.draft.seconds(batch, 1)
        return times.exchange_s + drafting_s + times.target.seconds(batch, depth + 1)
    draft = times.draft_beside
    copies = plan.fallback is Fallback.LOOKUP or plan.drafter is Drafter.BOTH
    width = depth + 1 if copies else 1
    ahead_s = preparing_s(times, batch, plan, width)
    waited_s = depth * draft.seconds(batch, 1) if plan.fallback is Fallback.JIT else 0.0
    verify_s = times.target_beside.seconds(batch, depth + 1)
    return times.exchange_s + waited_s + max(verify_s, ahead_s)


def preparing_s(times: PairTimes, batch: int, plan: RoundPlan, width: int = 1) -> float:
    """Seconds of a root pass of ``width`` tokens and the branch steps of that plan."""
    draft = times.draft_beside
    branches_s = plan.num_draft * draft.seconds(batch, plan.num_branches)
    return draft.seconds(batch, width) + branches_s


def may_wait(plan: RoundPlan) -> bool:
    """Whether rows that missed may sit a round out, while others have drafts."""
    return plan.mode == "ssd" and plan.fallback is Fallback.JIT


def as_if_uncut(row: RowReport, plan: RoundPlan, before: RoundPlan) -> tuple[ProposalKind, int]:
    """A row's kind and number of drafts where proposals may end before K: the first token that was
    left out counts as drafted, so like one that was rejected. A plan's K yields that much."""
    kind = ProposalKind.JIT if plan.mode == "sd" else row.kind
    depth = before.num_draft if plan.mode == "ssd" else plan.num_draft
    is_cut = kind in (ProposalKind.HIT, ProposalKind.JIT) and row.num_drafted < depth
    return kind, row.num_drafted + is_cut


def spelt(plan: RoundPlan) -> str:
    """A plan in a few words."""
    if plan.mode == "ar":
        return "ar"
    text = f"{kind_of(plan)} K {plan.num_draft}"
    return text if plan.mode == "sd" else f"{text} W {plan.num_branches} {plan.fallback.value}"


def kind_of(plan: RoundPlan) -> str:
    """The mode, and the drafter where it is another than the model: what has a pace of its own."""
    return plan.mode if plan.drafter is Drafter.MODEL else _KINDS[plan.mode, plan.drafter]


_KINDS = {
    (mode, drafter): f"{mode} {drafter}"
    for mode in MODES
    for drafter in (Drafter.LOOKUP, Drafter.BOTH)
}
