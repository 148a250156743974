"""The plans that a controller chooses from, and which of them are near each other."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.spec.cost import PairTimes
from runtime.spec.cost.search import Space
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import RoundPlan, RowReport

NUM_WIDTHS = 3
"""W, W / 2 and W / 4: what fewer branches save beyond that is little."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What may be planned beside plain rounds: ``modes`` of sd and ssd, up to ``num_draft`` (K)
    tokens and ``num_branches`` (W) outcomes, and the ``fallbacks`` of ssd."""

    modes: tuple[str, ...] = ()
    num_draft: int = 0
    num_branches: int = 0
    fallbacks: tuple[Fallback, ...] = (Fallback.ZERO,)

    def plans(self) -> list[RoundPlan]:
        """Every speculative plan."""
        widths = {self.num_branches >> halved for halved in range(NUM_WIDTHS)} - {0}
        space = Space(range(1, self.num_draft + 1), sorted(widths), self.fallbacks)
        return [plan for mode in self.modes for plan in space.plans(mode)]


def is_near(plan: RoundPlan, other: RoundPlan) -> bool:
    """They differ in one choice: the mode, W, the fallback, or K by one or two."""
    steps = abs(plan.num_draft - other.num_draft)
    if plan.mode != other.mode:
        return steps == 0
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
    if plan.mode == "sd":
        # The first call may also take in the last drafted token of the round before.
        drafting_s = times.draft.seconds(batch, 2) + (depth - 1) * times.draft.seconds(batch, 1)
        return times.exchange_s + drafting_s + times.target.seconds(batch, depth + 1)
    draft = times.draft_beside
    width = depth + 1 if plan.fallback is Fallback.LOOKUP else 1
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
    text = f"{plan.mode} K {plan.num_draft}"
    return text if plan.mode == "sd" else f"{text} W {plan.num_branches} {plan.fallback.value}"
