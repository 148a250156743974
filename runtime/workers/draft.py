"""The draft's side: draft K tokens, or prepare K tokens for each likely outcome ahead of time.

One graph serves every call; only its width and mask differ. ``runtime.workers.draft_row`` has the
table of what a row's trunk holds after each event. A round of ``ssd``, for all rows together:

    prepare   root pass, forks, branch steps         while the target verifies
    adopt     outcomes in, proposals out             between two verifications: fast
    commit    winning branches move to the trunk,    while the target verifies again
              statistics learn from the outcomes

What a row does after a miss is decided in ``adopt``, without the host:

    zero      it proposes nothing
    lookup    it proposes what its own text repeats, or nothing
    jit       no row has a proposal: all missing ones are drafted at once, the target waits;
              else it sits rounds out (SKIP) and ``prepare`` drafts it: no hit waits for it

Each of these calls is told the round's plan; K, W and the fallback may be others from round to
round. A change of mode begins with ``resume``. While the draft rests (``ar``) texts go on without
it, so ``resume`` is told them, and ``catch_up`` feeds what the trunks lack, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from engines.profiles import PROMPT_CHUNK, PROMPT_STEP
from runtime.backends.api import Session
from runtime.kv.capacity import require_capacity
from runtime.kv.slots import SlotRef
from runtime.sampling.api import Rule
from runtime.spec.cache import SpeculationCache
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.length import Lengths
from runtime.spec.ngram import NgramIndex
from runtime.spec.outcome import Outcome
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.ahead import Ahead
from runtime.workers.cutter import Cutter
from runtime.workers.draft_calls import DraftCalls
from runtime.workers.draft_row import DraftRow, RowState, Seen
from runtime.workers.entry import Entry, Resumed, require_free, require_lease
from runtime.workers.just_in_time import draft_at_once
from runtime.workers.mailbox import Kind, Mailbox
from runtime.workers.prefill import prefill_chunk


class DraftWorker:
    """Drafting for a batch: row i of a call is slot i. All methods but the constructor run as
    work on the draft's stream."""

    def __init__(
        self,
        session: Session,
        rule: Rule,
        mailbox: Mailbox,
        *,
        num_draft: int,
        num_branches: int,
        statistics: OutcomeStatistics,
        fallback: Fallback = Fallback.ZERO,
        lengths: Lengths | None = None,
    ) -> None:
        """K and W at most, and with ``fallback`` what a round has whose plan says nothing else.
        With ``lengths`` proposals end where the draft is unsure of itself (coupled rule only).

        Raises CapacityError where they are beyond what the engine was built for."""
        manifest = session.manifest
        require_capacity(
            manifest.kv, manifest.limits, num_draft=num_draft, num_branches=num_branches
        )
        self.session = session
        self.rule = rule
        self.mailbox = mailbox
        self.num_draft = num_draft
        self.num_branches = num_branches
        self.statistics = statistics
        self.plan = RoundPlan("ssd", num_draft, num_branches, fallback)
        self.cache = SpeculationCache()
        self.rows: list[DraftRow | None] = [None] * mailbox.num_rows
        self.round = 0
        self._calls = DraftCalls(session, rule)
        self._cutter = (
            None if lengths is None else Cutter(lengths, session.vocab_map, mailbox.num_rows)
        )
        self._ahead = Ahead(
            self._calls,
            statistics,
            num_rows=mailbox.num_rows,
            num_draft=num_draft,
            num_branches=num_branches,
        )
        self._logits = [
            np.zeros((num_draft + 1, manifest.model.output_vocab), np.float32) for _ in self.rows
        ]
        self._num_rows = 0
        self._predicted_hits = 0.0
        self._num_predicted = 0
        self._worked = (0.0, 0.0)  # when the last work ahead of an outcome began and ended

    def reset(self) -> None:
        """Forget every text and go back to the fewest cache rows."""
        self.session.reset_rows()
        self.rows[:] = [None] * len(self.rows)
        self.cache = SpeculationCache()
        self._count_rows()

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""
        index = slot.index
        held = self.rows[index]
        require_free(None if held is None else held.slot, slot)
        row = DraftRow(slot, entry, self._logits[index], list(entry.prompt), self.num_draft)
        self.rows[index] = row
        self._run_if_fed(row)

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt; after the last one its text runs."""
        row = self._row(slot)
        self._feed(row, row.trunk, row.entry.chunk(row.trunk))
        self._run_if_fed(row)

    def retire(self, slot: SlotRef) -> None:
        """The slot's text has ended, or is wanted no more."""
        self._row(slot)
        self.rows[slot.index] = None
        self._count_rows()

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease, and its proposal with it."""
        row = self._row(source)
        old, new = source.index, destination.index
        held = self.rows[new]
        require_free(None if held is None else held.slot, destination)
        self._calls.bind(row.trunk)
        self.session.copy_slot(old, new, self._calls.layout.trunk_rows(row.trunk))
        self.mailbox.move(source, destination)
        # Kept logits are the slot's memory and stay with their row.
        self._logits[old], self._logits[new] = self._logits[new], self._logits[old]
        row.slot = destination
        self.rows[new], self.rows[old] = row, None
        self._count_rows()

    def resume(self, texts: Sequence[Resumed]) -> None:
        """Go on after a rest, or in another mode, with all texts as they are now: proposals and
        what was prepared are void, and no row waits for drafts any more."""
        self.cache = SpeculationCache()
        for text in texts:
            row = self._row(text.slot)
            row.resume(text.tokens, text.num_fed, is_running=text.is_running)
        self._count_rows()

    def catch_up(self, slot: SlotRef) -> None:
        """Feed the next chunk that a slot's trunk lacks since ``resume``; nothing if it has all."""
        row = self._row(slot)
        if row.trunk < row.num_fed:
            # Begun at a multiple like a prompt's, so that it fits the cache and its shapes are few.
            start = row.trunk - row.trunk % PROMPT_STEP
            self._feed(row, start, row.tokens[start : min(start + PROMPT_CHUNK, row.num_fed)])

    def _feed(self, row: DraftRow, start: int, chunk: Sequence[int]) -> None:
        known = self._calls.known(chunk)
        prefill_chunk(self.session, self._calls.layout, row.slot.index, start, known)
        row.trunk = start + len(chunk)

    def draft(self, plan: RoundPlan | None = None) -> None:
        """Draft K tokens for every row, one after the other, and propose them (``sd``)."""
        started = perf_counter()
        self._set(plan)
        rows = [row for row in self.rows if row is not None and row.state is RowState.RUNNING]
        draft_at_once(self._calls, self.rows[: self._num_rows], rows, None, self._cutter)
        self._propose()
        self._note_times(exposed_s=perf_counter() - started, worked_s=perf_counter() - started)

    def follow(self, plan: RoundPlan | None = None) -> None:  # noqa: ARG002 - others need it
        """Take in the outcomes and propose nothing (``sd``)."""
        self._take_outcomes()

    def prepare(self, plan: RoundPlan | None = None) -> None:
        """Root pass, forks and K branch steps: fill the speculation cache for this round."""
        started = perf_counter()
        plan = self._set(plan)
        rows = self.rows[: self._num_rows]
        self._ahead.prepare(rows, self.cache, self.round, plan)
        if plan.fallback is Fallback.LOOKUP:
            for row in rows:
                if row is not None and row.ngrams is None:
                    row.ngrams = NgramIndex(row.tokens)
        self._worked = (started, perf_counter())

    def adopt(self, plan: RoundPlan | None = None) -> None:
        """Take in the outcomes: a hit's tokens become the next proposal, a miss falls back.

        ``plan`` is the one that was prepared under. A hit's cache rows are moved later, by
        ``commit``.
        """
        plan = plan or self.plan
        drafted = [row for row in self.rows if row is not None and row.state is RowState.WAITING]
        missing = self._take_outcomes()
        for row in drafted:
            row.state = RowState.RUNNING
        begun, ended = self._worked
        decided = float(self.mailbox.figures.array[mail.DECIDED_AT])
        exposed_s = max(0.0, ended - max(begun, decided))
        worked_s = ended - begun
        waited = perf_counter()
        if missing:
            self._fall_back(missing, plan)
            if plan.fallback is Fallback.JIT:
                exposed_s += perf_counter() - waited
                worked_s += perf_counter() - waited
        self._propose()
        self._note_times(exposed_s=exposed_s, worked_s=worked_s)
        self.round += 1

    def commit(self) -> None:
        """Move each winning branch's rows from scratch to the trunk and keep its logits; learn
        from the outcomes."""
        learnt = []
        for index, row in enumerate(self.rows[: self._num_rows]):
            if row is None:
                continue
            if row.winner is not None:
                self._ahead.branches.commit(index, row, row.winner, len(row.proposal))
                row.winner = None
            if row.seen is not None and row.predicted is not None:
                learnt.append((row.seen, row.predicted, row.rank))
            row.seen = row.predicted = None
        for left, (seen, predicted, rank) in enumerate(learnt, start=1 - len(learnt)):
            self._observe(seen, predicted, rank, ends_round=left == 0)

    def _take_outcomes(self) -> list[DraftRow]:
        """Each verified row's text goes on; returns the rows that missed and go on."""
        missing = []
        cells: list[list[int]] = self.mailbox.outcomes.array[: self._num_rows].tolist()
        for row, outcome in zip(self.rows, cells, strict=False):
            if row is None or row.state is not RowState.RUNNING:
                continue
            if outcome[mail.GENERATION] != row.slot.generation:
                require_lease(SlotRef(row.slot.index, outcome[mail.GENERATION]), row.slot)
            accepted = outcome[mail.ACCEPTED]
            emitted = outcome[mail.EMITTED : mail.EMITTED + accepted + 1]
            found = Outcome(accepted, emitted[-1])
            prepared = self.cache.take(row.slot, self.round, found)
            row.seen = (row.source, len(row.proposal), found, prepared is not None)
            row.rank = None if row.predicted is None else _rank(row.candidates, found)
            if self._cutter is not None:
                self._cutter.judged(row, accepted)
            if not row.follow(emitted, accepted):
                continue
            if prepared is None:
                missing.append(row)
                continue
            row.kind = Kind.HIT
            row.proposal = prepared.tokens[: row.room]
            if self._cutter is not None:
                row.proposal = self._cutter.cut(row, self._ahead.branches, prepared.branch)
            if row.proposal:
                row.winner = prepared.branch
                row.laws = self._ahead.branches.laws(row, prepared.branch, len(row.proposal))
        return missing

    def _fall_back(self, missing: Sequence[DraftRow], plan: RoundPlan) -> None:
        if plan.fallback is Fallback.LOOKUP:
            for row in missing:
                assert row.ngrams is not None
                row.proposal = row.ngrams.propose(row.room)
                row.kind = Kind.LOOKUP if row.proposal else Kind.NONE
        elif plan.fallback is Fallback.JIT:
            missing = [row for row in missing if row.room]
            if any(row is not None and row.proposal for row in self.rows):
                for row in missing:
                    row.state = RowState.WAITING
            else:
                laws = self.statistics.plan(ProposalKind.JIT, plan.num_draft, plan.num_branches)
                batch = self.rows[: self._num_rows]
                draft_at_once(self._calls, batch, missing, laws.counts, self._cutter)

    def _propose(self) -> None:
        for index, row in enumerate(self.rows[: self._num_rows]):
            if row is not None and row.state is not RowState.PROMPT:
                kind = Kind.SKIP if row.state is RowState.WAITING else row.kind
                self.mailbox.propose(
                    index, row.slot.generation, kind, row.proposal, row.laws, row.rank
                )

    def _observe(self, seen: Seen, predicted: float, rank: int | None, *, ends_round: bool) -> None:
        source, num_drafted, outcome, hit = seen
        self.statistics.observe(
            kind=source,
            num_drafted=num_drafted,
            accepted=outcome.accepted,
            rank=rank,
            hit=hit,
            predicted=predicted,
            ends_round=ends_round,
        )
        self._predicted_hits += predicted
        self._num_predicted += 1

    def _set(self, plan: RoundPlan | None) -> RoundPlan:
        plan = plan or self.plan
        for row in self.rows:
            if row is not None:
                row.num_draft = plan.num_draft
        return plan

    def _row(self, slot: SlotRef) -> DraftRow:
        row = self.rows[slot.index]
        require_lease(None if row is None else row.slot, slot)
        assert row is not None
        return row

    def _run_if_fed(self, row: DraftRow) -> None:
        if row.trunk == len(row.entry.prompt) - 1:
            row.state = RowState.RUNNING
            self._count_rows()

    def _count_rows(self) -> None:
        """Rows of the next calls: up to the last slot whose text runs."""
        self._num_rows = 1 + max(
            (
                index
                for index, row in enumerate(self.rows)
                if row is not None and row.state is not RowState.PROMPT
            ),
            default=-1,
        )

    def _note_times(self, *, exposed_s: float, worked_s: float) -> None:
        figures = self.mailbox.draft_figures.array
        figures[mail.DRAFT_S] += worked_s
        figures[mail.EXPOSED_S] += exposed_s
        figures[mail.PREDICTED_HITS] = self._predicted_hits
        figures[mail.NUM_PREDICTED] = self._num_predicted


def _rank(candidates: Sequence[list[int]], outcome: Outcome) -> int | None:
    """Where the bonus token stands among the candidates for its place."""
    known = candidates[outcome.accepted]
    return known.index(outcome.bonus) if outcome.bonus in known else None
