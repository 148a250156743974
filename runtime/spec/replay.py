"""The rounds that speculation would have needed for a text, from what the draft thought of it.

Under the coupled rule a text does not depend on the drafts, so its rounds can be found afterwards:
a drafted token was accepted where the text's token was the draft's first choice, and a bonus
token was prepared where its rank was within the fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.lookup import SourceChoice, num_common
from runtime.spec.ngram import NgramIndex
from runtime.spec.statistics import OutcomeStatistics

LEAST_MATCH = 2
"""A single token that stood there before promises less than most drafts."""


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
        may_copy = fallback is Fallback.LOOKUP and not is_hit
        copied = _copied(index, num_draft) if may_copy else ()
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


def _copied(index: NgramIndex, num_draft: int) -> tuple[int, ...]:
    """K tokens behind a match that promises some of them; the laws are of proposals of K."""
    match = index.find(num_draft)
    return match.tokens if match.length >= LEAST_MATCH else ()


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


class LookupReplay:
    """Rounds of ``sd`` with lookups, alone or in front of a draft, for one text after the other:
    what copies are worth is learnt from each for the next."""

    def __init__(self, num_draft: int, floor: float = 0.0) -> None:
        """``floor`` as in ``RoundPlan``. 0: a copy has all its K tokens. Rounds are counted here,
        whatever they take: a pair that runs in ``sd`` leaves out tokens that are unlikely to pay
        for their row (LEAST_REACH), and copies somewhat sooner, since a round waits for what the
        model drafts (DRAFTING)."""
        self.choice = SourceChoice(num_draft)
        self._num_draft = num_draft
        self._floor = floor

    def num_rounds(
        self, prompt: Sequence[int], answer: Sequence[int], agrees: Sequence[bool] | None = None
    ) -> int:
        """Verifications until the whole answer is there. ``agrees``: where the draft's first choice
        is the answer's token; None without a draft."""
        index, place, rounds = NgramIndex(prompt), 0, 0
        while place < len(answer):
            accepted = self._accepted(index, answer[place:], agrees and agrees[place:])
            index.extend(answer[place : place + accepted + 1])
            place += accepted + 1
            rounds += 1
        return rounds

    def _accepted(
        self, index: NgramIndex, rest: Sequence[int], agrees: Sequence[bool] | None
    ) -> int:
        num, kind, choice = self._num_draft, ProposalKind.JIT, self.choice
        match = index.find(num)
        other = 0.0 if agrees is None else choice.model_worth(kind, num)
        copied = choice.choose(match, other, self._floor)
        if copied or agrees is None:
            accepted = num_common(copied, rest)
        else:
            accepted = num_common([True] * num, agrees)
        if match.length:
            choice.see_copy(match, rest[: accepted + 1])
            if not copied and agrees is not None:
                choice.see_model(kind, num, accepted)
        return accepted
