"""How a stream's tokens arrive in the long run: the chain of its rounds, for each mode.

What a row brings into a round depends on its own last round alone: after a hit the tokens prepared
for it, after a miss its fallback. So a row is a chain of two states, and it begins a share

    p_b / (1 - p_p + p_b)

of its rounds with a hit, p_p and p_b being the hit rates after a hit and after a miss. What the
rows of a batch share is time: a round takes as long as its widest call asks for.
"""

from __future__ import annotations

from typing import NamedTuple

from runtime.spec.cost.laws import Laws
from runtime.spec.cost.shares import hit_share, waiting_shares
from runtime.spec.cost.times import PairTimes
from runtime.spec.fallback import Fallback, ProposalKind

NEVER = 1e-6
"""Shares below this are rounding."""


class Emission(NamedTuple):
    """Tokens of one stream that arrive at once.

    share    of the stream's emissions that are like this one; they sum to 1
    seconds  since the emission before
    tokens   on average
    rounds   that it took: 2 where the row sat one out
    """

    share: float
    seconds: float
    tokens: float
    rounds: int = 1


class Chain(NamedTuple):
    """Emissions, and how often an outcome was prepared: in all, of rounds after a hit, after a
    miss; None where nothing is prepared."""

    emissions: tuple[Emission, ...]
    hit_rate: float | None = None
    after_hit: float | None = None
    after_miss: float | None = None


def plain(times: PairTimes, batch: int) -> Chain:
    """``ar``: one call of the target a round."""
    seconds = times.target.seconds(batch, 1) + times.exchange_s
    return Chain((Emission(1.0, seconds, 1.0),))


def synchronous(times: PairTimes, laws: Laws, batch: int, num_draft: int) -> Chain:
    """``sd``: K calls of the draft, then one of the target. The draft's first call also feeds the
    last token of a row that accepted all."""
    law, draft = laws.kinds[ProposalKind.JIT], times.draft
    any_accepted_all = 1 - (1 - float(law.accepted(num_draft)[-1])) ** batch
    one, two = draft.seconds(batch, 1), draft.seconds(batch, 2)
    drafting = num_draft * one + any_accepted_all * (two - one)
    seconds = drafting + times.target.seconds(batch, 1 + num_draft) + times.exchange_s
    return Chain((Emission(1.0, seconds, law.tokens(num_draft)),))


def asynchronous(
    times: PairTimes, laws: Laws, batch: int, num_draft: int, width: int, fallback: Fallback
) -> Chain:
    """``ssd`` with W = ``width`` branches: a verification beside root pass and K branch steps,
    whichever takes longer."""
    if fallback is Fallback.JIT:
        return _drafting_again(times, laws, batch, num_draft, width)
    return _going_on(times, laws, batch, num_draft, width, copies=fallback is Fallback.LOOKUP)


def _going_on(
    times: PairTimes, laws: Laws, batch: int, num_draft: int, width: int, *, copies: bool
) -> Chain:
    """``zero`` and ``lookup``: every row takes part in every round, whatever the others do."""
    kinds = laws.kinds
    hit, copy, none = kinds[ProposalKind.HIT], kinds[ProposalKind.LOOKUP], kinds[ProposalKind.NONE]
    found = laws.lookup_share if copies else 0.0
    after_hit = hit.hit_rate(num_draft, width)
    after_miss = found * copy.hit_rate(num_draft, width) + (1 - found) * none.hit_rate(0, width)
    hits = hit_share(after_hit, after_miss)
    copied, bare = (1 - hits) * found, (1 - hits) * (1 - found)
    others = batch - 1
    others_bare, others_copy_nothing = bare**others, (1 - copied) ** others
    cost = RoundSeconds(times, batch, num_draft, width)
    emissions = (
        Emission(hits * others_copy_nothing, cost.drafted, hit.tokens(num_draft)),
        Emission(hits * (1 - others_copy_nothing), cost.copied, hit.tokens(num_draft)),
        Emission(copied, cost.copied, copy.tokens(num_draft)),
        Emission(bare * others_bare, cost.bare, 1.0),
        Emission(bare * (others_copy_nothing - others_bare), cost.drafted, 1.0),
        Emission(bare * (1 - others_copy_nothing), cost.copied, 1.0),
    )
    return Chain(_likely(emissions), hits, after_hit, after_miss)


def _drafting_again(times: PairTimes, laws: Laws, batch: int, num_draft: int, width: int) -> Chain:
    """``jit``: rows that missed are drafted at once if no row has drafts, else they sit a round out
    and are drafted beside it."""
    hit, again = laws.kinds[ProposalKind.HIT], laws.kinds[ProposalKind.JIT]
    after_hit = hit.hit_rate(num_draft, width)
    after_miss = again.hit_rate(num_draft, width)
    shares = waiting_shares(after_hit, after_miss, batch)
    cost = RoundSeconds(times, batch, num_draft, width)
    emitting = shares.hit + shares.at_once + shares.waited
    emissions = (
        Emission(shares.hit / emitting, cost.drafted, hit.tokens(num_draft)),
        Emission(shares.at_once / emitting, cost.at_once, again.tokens(num_draft)),
        Emission(shares.waited / emitting, 2 * cost.drafted, again.tokens(num_draft), 2),
    )
    return Chain(_likely(emissions), shares.hit / emitting, after_hit, after_miss)


class RoundSeconds:
    """What a round of ``ssd`` takes.

    bare      no row brings drafts
    drafted   one does
    copied    one's are copied: its trunk holds nothing of them, so the root pass feeds them all
    at_once   all were drafted just in time, and the target waited for it
    """

    def __init__(self, times: PairTimes, batch: int, num_draft: int, width: int) -> None:
        target, draft = times.target_beside, times.draft_beside
        wide, narrow = target.seconds(batch, 1 + num_draft), target.seconds(batch, 1)
        branches = num_draft * draft.seconds(batch, width)
        ahead = branches + draft.seconds(batch, 1) + times.ahead_s
        ahead_of_copy = branches + draft.seconds(batch, 1 + num_draft) + times.ahead_s
        self.bare = max(narrow, ahead) + times.exchange_s
        self.drafted = max(wide, ahead) + times.exchange_s
        self.copied = max(wide, ahead_of_copy) + times.exchange_s
        self.at_once = self.drafted + num_draft * (draft.seconds(batch, 1) + times.again_s)


def _likely(emissions: tuple[Emission, ...]) -> tuple[Emission, ...]:
    kept = [each for each in emissions if each.share > NEVER]
    whole = sum(each.share for each in kept)
    return tuple(each._replace(share=each.share / whole) for each in kept)
