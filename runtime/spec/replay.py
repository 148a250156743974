"""The rounds that ``ssd`` would have needed for a text, from what the draft thought of each token.

Under the coupled rule a text does not depend on the drafts, so its rounds can be found afterwards:
a drafted token was accepted where the text's token was the draft's first choice, and a bonus
token was prepared where its rank was within the fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.ngram import NgramIndex
from runtime.spec.statistics import OutcomeStatistics


@dataclass(frozen=True, slots=True)
class RankedText:
    """A text of the target's. ``ranks[i]`` is the rank of ``answer[i]`` among the draft's choices
    for its place, given the text before it; 0 is the first. Raises ValueError for other ranks."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        # They come back from a file of the user's: wrong ones are made again.
        if len(self.ranks) != len(self.answer) or min(self.ranks, default=0) < 0:
            raise ValueError("a text has one rank from 0 for each token of its answer")


def replay(text: RankedText, statistics: OutcomeStatistics, width: int, fallback: Fallback) -> None:
    """Let the statistics observe the text's rounds with ``width`` (W) branches, as far as their
    outcomes are known. No branches make each round one that was drafted just in time, as ``sd``
    has them, or one of the other fallback's."""
    index = NgramIndex(text.prompt)
    num_draft, end = statistics.num_draft, len(text.answer)
    place, is_hit = 0, False
    while True:
        copied = index.propose(num_draft) if fallback is Fallback.LOOKUP and not is_hit else ()
        kind = _kind(fallback, is_hit, copied)
        drafted = 0 if kind is ProposalKind.NONE else num_draft
        if place + drafted >= end:
            return
        accepted = 0
        while accepted < drafted and _stands(text, copied, place, accepted):
            accepted += 1
        rank = text.ranks[place + accepted]
        if accepted < drafted and not copied:
            rank -= 1  # the draft's first choice was rejected and is no candidate
        plan = statistics.plan(kind, drafted, width)
        is_hit = rank < plan.counts[accepted]
        statistics.observe(
            kind=kind,
            num_drafted=drafted,
            accepted=accepted,
            rank=rank,
            hit=is_hit,
            predicted=plan.hit_rate,
        )
        index.extend(text.answer[place : place + accepted + 1])
        place += accepted + 1


def _kind(fallback: Fallback, is_hit: bool, copied: Sequence[int]) -> ProposalKind:
    if is_hit:
        return ProposalKind.HIT
    if copied:
        return ProposalKind.LOOKUP
    return ProposalKind.JIT if fallback is Fallback.JIT else ProposalKind.NONE


def _stands(text: RankedText, copied: Sequence[int], place: int, depth: int) -> bool:
    """Whether the drafted token of that depth is the text's."""
    if copied:
        return copied[depth] == text.answer[place + depth]
    return text.ranks[place + depth] == 0
