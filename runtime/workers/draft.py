"""The draft's side: draft K tokens, or prepare K tokens for each likely outcome ahead of time.

One graph serves every call; only its width and mask differ. What the trunk of a row's slot holds
is a prefix of (text + proposal), and ``DraftRow.trunk`` is its length:

    event                      trunk after it                       then fed next (root width)
    hit                        n + K - 1 (branch rows copied)       x_K alone (1)
    miss, zero drafts          n - 1                                the bonus token (1)
    drafted just in time       n + K - 1                            x_K alone, or x_K and t* (1, 2)

with n the text's length after the outcome, its last token being the bonus token t*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from runtime.backends.api import CallShape, Session, Step
from runtime.kv.layout import SlotLayout, branch_mask
from runtime.kv.slots import SlotRef
from runtime.sampling.api import Rule
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import SparseLaw
from runtime.spec.cache import SpeculationCache
from runtime.spec.fanout import fan_out
from runtime.spec.outcome import Outcome, Prepared
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.calls import fill_trunk
from runtime.workers.mailbox import Mailbox
from runtime.workers.prefill import prefill

Laws = tuple[SparseLaw, ...]


@dataclass(slots=True)
class DraftRow:
    """One row's text as the draft knows it. Written by ``DraftWorker`` alone.

    ``logits[k]`` [V] are the draft's after the first k tokens of the proposal, where an earlier
    call has them already; the root pass brings the rest.
    """

    slot: SlotRef
    params: SamplingParams
    tokens: list[int]
    trunk: int
    proposal: tuple[int, ...] = ()
    logits: list[np.ndarray] = field(default_factory=list)
    candidates: list[list[int]] = field(default_factory=list)
    laws: list[Laws] = field(default_factory=list)
    winner: int | None = None
    active: bool = True

    def park(self) -> None:
        """Become a dummy: one token of text, so that calls for the whole batch stay valid."""
        self.active = False
        self.tokens, self.trunk = [0], 0
        self.proposal, self.logits, self.winner = (), [], None

    @property
    def unfed(self) -> list[int]:
        """Tokens of text + proposal that the trunk does not hold yet."""
        length = len(self.tokens)
        return [*self.tokens[self.trunk :], *self.proposal[max(0, self.trunk - length) :]]


class DraftWorker:
    """Drafting for a batch: row i of the batch is slot i.

    All methods but the constructor run as work on the draft's stream.
    """

    def __init__(
        self,
        session: Session,
        rule: Rule,
        mailbox: Mailbox,
        *,
        num_draft: int,
        num_branches: int,
        statistics: OutcomeStatistics,
    ) -> None:
        limits = session.manifest.limits
        self.session = session
        self.rule = rule
        self.mailbox = mailbox
        self.num_draft = num_draft
        self.num_branches = num_branches
        self.statistics = statistics
        # The scratch rows were laid out for the built W; using fewer branches keeps the stride.
        self.layout = SlotLayout(session.manifest.kv, limits.max_branches)
        self.max_len = limits.max_len
        self.cache = SpeculationCache()
        self.rows: list[DraftRow] = []
        self.round = 0
        self.busy_s = 0.0

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        slots: Sequence[SlotRef],
    ) -> None:
        """Begin a batch: all tokens of a prompt but the last go into the cache."""
        self.session.reset_rows()
        self.cache = SpeculationCache()
        self.rows = []
        for slot, prompt, law in zip(slots, prompts, params, strict=True):
            prefill(self.session, self.layout, slot.index, self._known(prompt[:-1]))
            self.rows.append(DraftRow(slot, law, list(prompt), len(prompt) - 1))

    def retire(self, row: int) -> None:
        """The row's text has ended; it goes on as a dummy that proposes nothing."""
        self.rows[row].park()

    def adopt(self) -> None:
        """Take in the outcomes: a hit's tokens become the next proposal, a miss proposes nothing.

        Fast: it stands between a verification and the next. A hit's cache rows are moved later,
        by ``commit``.
        """
        for index, row in enumerate(self.rows):
            row.winner = None
            if not row.active:
                row.park()
                self.mailbox.propose(index, (), None)
                continue
            outcome = self.mailbox.outcome(index)
            prepared = self.cache.take(row.slot, self.round, outcome)
            self._observe(row, outcome, prepared)
            text = len(row.tokens)
            row.tokens.extend(self.mailbox.emitted(index))
            row.trunk = min(row.trunk, text + outcome.accepted)
            row.proposal, row.logits = (), []
            laws: Laws | None = None
            if len(row.tokens) >= self.max_len:
                row.park()
            elif prepared is not None:
                row.winner = prepared.branch
                row.proposal = prepared.tokens
                laws = row.laws[prepared.branch] or None
            self.mailbox.propose(index, row.proposal, laws)
        self.round += 1

    def commit(self) -> None:
        """Move each winning branch's rows from scratch to the trunk and keep its logits."""
        for index, row in enumerate(self.rows):
            if row.winner is None:
                continue
            depth = len(row.proposal)
            self.session.copy_rows(
                row.slot.index,
                self.layout.branch_rows(row.winner, depth),
                self.layout.trunk_row(row.trunk),
            )
            row.trunk += depth
            row.logits = [
                self._branch_step(index, step).logits[0, row.winner].copy() for step in range(depth)
            ]

    def draft(self) -> None:
        """Draft K tokens for every row, one after the other, and propose them."""
        started = perf_counter()
        laws: list[list[SparseLaw]] = [[] for _ in self.rows]
        for depth in range(self.num_draft):
            step, fed = self._feed([row.unfed for row in self.rows], num_logits=1)
            for index, row in enumerate(self.rows):
                token, law = self._choose(row, step, index, 0, len(row.tokens) + depth)
                row.trunk += fed[index]
                row.logits.append(step.logits[index, 0].copy())
                row.proposal = (*row.proposal, token)
                if law is not None:
                    laws[index].append(law)
        for index, row in enumerate(self.rows):
            tokens = row.proposal if row.active else ()
            self.mailbox.propose(index, tokens, tuple(laws[index]) or None)
        self.busy_s += perf_counter() - started

    def prepare(self) -> None:
        """Root pass, fork and K branch steps: fill the speculation cache for this round."""
        started = perf_counter()
        self._make_room()
        self._root()
        for index, row in enumerate(self.rows):
            if row.active:
                self._branch(index, row, self._fork(row))
        self.busy_s += perf_counter() - started

    def _make_room(self) -> None:
        """Bind what the whole round needs, ``commit`` included: growing in between would drop the
        branch steps' outputs, which ``commit`` still reads."""
        longest = max(len(row.tokens) + len(row.proposal) for row in self.rows)
        reach = min(longest + self.num_draft, self.layout.kv.trunk_rows)
        self.session.bind_rows(self.layout.rows_for(reach))

    def _root(self) -> None:
        """Bring the trunk up to the whole proposal, and the logits after each of its tokens."""
        wanted = [len(row.proposal) + 1 - len(row.logits) for row in self.rows]
        fed = [row.unfed for row in self.rows]
        step, _ = self._feed(fed, num_logits=max(wanted))
        for index, row in enumerate(self.rows):
            row.logits += [step.logits[index, -count] for count in range(wanted[index], 0, -1)]
            row.trunk += len(fed[index])

    def _fork(self, row: DraftRow) -> list[tuple[int, int]]:
        """The branches to draft: (accepted count, bonus token), likeliest outcomes first."""
        drafted = len(row.proposal)
        ranks = self.statistics.rank_law(drafted)
        counts = fan_out(self.statistics.accepted_law(drafted), ranks, self.num_branches)
        row.candidates = [
            self.rule.bonus_candidates(
                row.logits[accepted],
                row.params,
                len(row.tokens) + accepted,
                ranks.shape[1],
                exclude=row.proposal[accepted] if accepted < drafted else None,
                ids_map=self.session.vocab_map,
            ).tolist()
            for accepted in range(drafted + 1)
        ]
        return [
            (accepted, token)
            for accepted in range(drafted + 1)
            for token in row.candidates[accepted][: counts[accepted]]
        ]

    def _branch(self, index: int, row: DraftRow, forks: list[tuple[int, int]]) -> None:
        """Draft K tokens for each fork of one row, all forks in one call a depth."""
        text = len(row.tokens)
        lengths = [text + accepted for accepted, _ in forks]  # positions before the bonus token
        fed = [token for _, token in forks]
        paths: list[list[int]] = [[] for _ in forks]
        laws: list[list[SparseLaw]] = [[] for _ in forks]
        for depth in range(self.num_draft):
            step = self._branch_step(index, depth)
            step.tokens[0] = 0
            step.tokens[0, : len(fed)] = fed
            step.positions[0] = depth
            step.positions[0, : len(fed)] = [length + depth for length in lengths]
            step.write_at[0] = self.layout.scratch_row(depth)
            branch_mask(step.mask[0], self.layout, lengths, depth)
            step.logit_rows[0] = range(self.num_branches)
            step.run()
            for branch, length in enumerate(lengths):
                token, law = self._choose(row, step, 0, branch, length + depth + 1)
                paths[branch].append(token)
                if law is not None:
                    laws[branch].append(law)
            fed = [path[-1] for path in paths]
        row.laws = [tuple(path) for path in laws]
        self.cache.store(
            row.slot,
            self.round,
            {
                Outcome(accepted, token): Prepared(branch, tuple(paths[branch]))
                for branch, (accepted, token) in enumerate(forks)
            },
        )

    def _branch_step(self, index: int, depth: int) -> Step:
        # Depths keep their own outputs: the winner's logits are wanted after the last of them.
        shape = CallShape(index, 1, self.num_branches, self.num_branches, copy=1 + depth)
        return self.session.prepare(shape)

    def _feed(self, fed: list[list[int]], num_logits: int) -> tuple[Step, list[int]]:
        """Feed each row's tokens to its trunk; logits of the last ``num_logits`` of each row.

        Rows with fewer tokens are padded on the right; their last logits row is their last token.
        """
        width = max(map(len, fed))
        self.session.bind_rows(self.layout.rows_for(max(row.trunk for row in self.rows) + width))
        step = self.session.prepare(CallShape(0, len(self.rows), width, num_logits))
        for index, row in enumerate(self.rows):
            count = len(fed[index])
            fill_trunk(step, index, self.layout, row.trunk, self._known(fed[index]))
            step.logit_rows[index] = [max(0, count - back) for back in range(num_logits, 0, -1)]
        step.run()
        return step, [len(tokens) for tokens in fed]

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """``tokens`` with 0 for ids that the draft has no embedding of (a target may be padded)."""
        vocab_size = self.session.manifest.model.vocab_size
        return [token if token < vocab_size else 0 for token in tokens]

    def _choose(
        self, row: DraftRow, step: Step, index: int, at: int, position: int
    ) -> tuple[int, SparseLaw | None]:
        """Draft the token of ``position`` from logits row ``at`` of the call's row ``index``."""
        if row.params.is_greedy:
            return int(step.sample[index, at]), None
        return self.rule.draft_token(
            step.logits[index, at], row.params, position, self.session.vocab_map
        )

    def _observe(self, row: DraftRow, outcome: Outcome, prepared: Prepared | None) -> None:
        if not row.candidates:
            return
        candidates = row.candidates[outcome.accepted]
        rank = candidates.index(outcome.bonus) if outcome.bonus in candidates else None
        self.statistics.observe(
            num_drafted=len(row.proposal),
            accepted=outcome.accepted,
            rank=rank,
            after_hit=bool(row.proposal),
            hit=prepared is not None,
        )
