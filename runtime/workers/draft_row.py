"""One row's text as the draft knows it, and what its trunk holds.

The trunk of a row's slot holds a prefix of (text + proposal), and ``DraftRow.trunk`` is its length.
With n the text's length after the outcome, its last token being the bonus token t*, and m drafted
tokens x_1 .. x_m:

    event                                        trunk after it             fed next (root width)
    -------------------------------------------  -------------------------  ---------------------
    joined, a prompt of n tokens                 n - 1                      t* (1)
    hit, branch rows committed                   n + m - 1                  x_m (1)
    miss, zero drafts                            n - 1                      t* (1)
    miss, drafted at once (the round waits)      n + m - 1                  x_m (1)
    miss, sits a round out, then drafted         n - 1, then n + m - 1      t* (1), then x_m (1)
    miss, looked up                              n - 1                      t*, x_1 .. x_m (m + 1)
    hit, overruled by a lookup whose first c     n + min(c, m - 1)          the rest (m - c, at
    tokens are the branch's; those committed                                least 1)
    looked up between two verifications (sd)     what it was                nothing; later the rest,
                                                                            in chunks (up to K + 1)
    drafted between two verifications (sd)       n + m - 1                  x_m, and t* if all were
                                                                            accepted (1 or 2)
    moved to another slot (compaction)           as before                  as before
    back after a rest (``resume``)               what it was before it      the rest, in chunks (1)
    over, or free                                what it was before it      nothing: a dummy

A rejection moves the trunk back to the accepted tokens: trunk = min(trunk, text + accepted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from runtime.kv.capacity import most_drafts
from runtime.kv.slots import SlotRef
from runtime.sampling.proposal import SparseLaw
from runtime.spec.fallback import ProposalKind
from runtime.spec.ngram import NO_MATCH, Match, NgramIndex
from runtime.spec.outcome import Outcome
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind

Laws = tuple[SparseLaw, ...]
Seen = tuple[ProposalKind, int, Outcome, bool]
"""A verified proposal's source and length, its outcome, and whether that had been prepared."""


class RowState(Enum):
    """PROMPT: being fed. RUNNING: each round verifies it. WAITING: it sits rounds out until its
    proposal is drafted. OVER: its text has ended, the host has not retired it yet."""

    PROMPT = auto()
    RUNNING = auto()
    WAITING = auto()
    OVER = auto()


@dataclass(slots=True)
class DraftRow:
    """Written by the draft's worker alone.

    logits      float32 [K + 1, V], of which the first ``num_logits`` are known: the draft's after
                the first 0, 1, ... tokens of the proposal
    laws        the laws the proposal was drawn from; None where the rule needs none
    candidates  likely bonus tokens after each accepted count, of this round's forks
    predicted   probability that this round's outcome was prepared; None where nothing was
    branch_laws the laws of each branch's tokens
    seen        the last outcome, until ``commit`` has learnt from it
    winner      the branch whose first ``num_won`` rows ``commit`` has yet to move to the trunk
    rank        where the last bonus token stood among the candidates, until it was reported
    num_fed     positions of the text that the target's cache holds, while the prompt is fed and
                after a rest: what the trunk has to catch up with
    ngrams      the text's index, once something was looked up in it; and the ``match`` of its end
                that was found for this round, proposed or not
    """

    slot: SlotRef
    entry: Entry
    logits: np.ndarray
    tokens: list[int]
    num_draft: int
    state: RowState = RowState.PROMPT
    trunk: int = 0
    num_logits: int = 0
    kind: Kind = Kind.NONE
    proposal: tuple[int, ...] = ()
    laws: Laws | None = None
    candidates: list[list[int]] = field(default_factory=list)
    predicted: float | None = None
    branch_laws: list[Laws] = field(default_factory=list)
    seen: Seen | None = None
    winner: int | None = None
    num_won: int = 0
    rank: int | None = None
    num_fed: int = 0
    ngrams: NgramIndex | None = None
    match: Match = NO_MATCH

    @property
    def unfed(self) -> list[int]:
        """Tokens of text + proposal that the trunk does not hold yet."""
        length = len(self.tokens)
        return [*self.tokens[self.trunk :], *self.proposal[max(0, self.trunk - length) :]]

    @property
    def room(self) -> int:
        """Drafted tokens that can still count."""
        return most_drafts(len(self.tokens), self.entry.limit, self.num_draft)

    @property
    def source(self) -> ProposalKind:
        """Where the proposal came from, for the statistics: from nowhere if it is empty."""
        return self.kind.source if self.proposal else ProposalKind.NONE

    def forget_proposal(self) -> None:
        """Begin a round with no drafts and nothing known."""
        self.kind, self.proposal, self.laws = Kind.NONE, (), None
        self.num_logits, self.winner = 0, None

    def take_copy(self, tokens: tuple[int, ...]) -> None:
        """Propose tokens that were looked up."""
        self.kind, self.proposal, self.laws = Kind.LOOKUP, tokens, None

    def resume(self, tokens: Sequence[int], num_fed: int, *, is_running: bool) -> None:
        """The text has grown to ``tokens`` without the draft, or some of its prompt was not fed."""
        self.forget_proposal()
        self.trunk = min(self.trunk, len(self.tokens), num_fed)
        if self.ngrams is not None:
            known = len(self.tokens)
            if self.tokens == list(tokens[:known]):
                self.ngrams.extend(tokens[known:])
            else:
                self.ngrams = None
        self.tokens, self.num_fed = list(tokens), num_fed
        self.state = RowState.RUNNING if is_running else RowState.PROMPT
        self.seen = self.predicted = self.rank = None
        self.match = NO_MATCH

    def park(self) -> None:
        """Become a dummy, behind rows that another text may use: this one is over."""
        self.forget_proposal()
        # A dummy behind the last place still has to lie in the cache (``runtime.kv.capacity``).
        self.state, self.trunk = RowState.OVER, min(self.trunk, self.entry.limit - 2)

    def follow(self, emitted: list[int], accepted: int) -> bool:
        """Take in the tokens that a round emitted; False when the text has ended."""
        self.trunk = min(self.trunk, len(self.tokens) + accepted)
        self.tokens.extend(emitted)
        self.forget_proposal()
        self.match = NO_MATCH
        stop_ids = self.entry.stop_ids
        if len(self.tokens) >= self.entry.limit or not stop_ids.isdisjoint(emitted):
            self.park()
            return False
        if self.ngrams is not None:
            self.ngrams.extend(emitted)
        return True

    def keep_logits(self, rows: np.ndarray) -> None:
        """Note the next known logits, float32 [count, V]; the array is copied."""
        self.logits[self.num_logits : self.num_logits + len(rows)] = rows
        self.num_logits += len(rows)
