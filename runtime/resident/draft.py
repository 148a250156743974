"""The draft's side of a round in device memory. The methods are ``runtime.workers.draft``'s.

Every method only enqueues. A round of ``ssd`` for all rows together, a CUDA graph a line:

    prepare   root pass (1 token a row), forks, K branch steps    while the target verifies
    adopt     verdict in, lookup, proposal out                    between two verifications
    commit    the winners' rows and candidates                    while the target verifies again

and of ``sd``:

    draft     root pass (2 tokens a row), K - 1 steps, proposal out
    follow    verdict in, lookup where nothing was prepared

A miss is a row that proposes nothing: no other row waits, and nobody decides it. To copy what
followed the same tokens earlier in a text, or to draft again at once, would need the host in
between: the fallbacks ``lookup`` and ``jit`` are refused. So is the ratio rule, whose laws would
have to travel.

    the trunk of a running text of n tokens, m of them drafted    holds
    ------------------------------------------------------------  ---------------------
    joined, or back after a rest (and fed what it lacked)         n - 1 positions
    after ``commit``                                              n + m - 1
    after ``follow``                                              n - 1 or n - 2
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from engines.profiles import PROMPT_CHUNK, PROMPT_STEP
from runtime.backends.api import CallShape, DeviceSession
from runtime.device.api import Device
from runtime.device.cuda import CudaDevice
from runtime.kv.capacity import require_capacity
from runtime.kv.kept import Shift
from runtime.kv.layout import SlotLayout
from runtime.kv.slots import SlotRef
from runtime.resident.calls import feed_chunk
from runtime.resident.draft_rows import DraftRows
from runtime.resident.drafting import Drafting
from runtime.resident.exchange import Exchange
from runtime.resident.kernels import Work
from runtime.resident.laws import MAX_RANKS, DraftLaws
from runtime.resident.learning import Learning
from runtime.resident.ledger import Held, Ledger
from runtime.resident.phases import Phases
from runtime.resident.reports import Reports
from runtime.resident.slabs import Slab
from runtime.resident.support import require_nothing_kept, require_supported
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.entry import Entry, Resumed


class ResidentDraft:
    """Drafting for a batch. All methods but the constructor are work of the draft's stream."""

    def __init__(
        self,
        session: DeviceSession,
        device: Device,
        work: Work,
        mailbox: Exchange,
        *,
        num_draft: int,
        num_branches: int,
        statistics: OutcomeStatistics,
    ) -> None:
        """K and W at most. Allocates on ``device``, so it is for the host thread; call ``load`` on
        the stream before anything else.

        Raises CapacityError where K or W is beyond what the engine was built for, DeviceError
        where there is too little memory.
        """
        manifest, size = session.manifest, mailbox.num_rows
        require_capacity(
            manifest.kv, manifest.limits, num_draft=num_draft, num_branches=num_branches
        )
        self.session = session
        self.mailbox = mailbox
        self.num_draft = num_draft
        self.num_branches = num_branches
        self.statistics = statistics
        self.plan = self._current = RoundPlan("ssd", num_draft, num_branches)
        self.ledger = Ledger(size)
        self.phases = Phases(device, session)
        # The scratch rows were laid out for the built W; using fewer branches keeps the stride.
        self._layout = SlotLayout(manifest.kv, manifest.limits.max_branches)
        self._work = work
        width, vocab = max(1, num_branches), manifest.model.vocab_size
        num_ranks = min(statistics.num_ranks, MAX_RANKS)
        self._memory = DraftRows(
            device, work, mailbox, self._layout, vocab, num_branches=width, num_ranks=num_ranks
        )
        self._laws = DraftLaws(
            device,
            work,
            manifest,
            size,
            [(batch, each) for batch in range(1, size + 1) for each in range(1, width + 1)],
            num_candidates=num_ranks + 1,
            vocab_map=session.vocab_map,
        )
        self._drafting = Drafting(work, self._memory, self._laws, self._layout, vocab)
        self._table = Slab(
            device, "cache table", {"caches": ("uint64", (2 * manifest.kv.num_layers,))}
        )
        self._in_table: list[int] = []
        outcome = self._memory.rows.shapes["outcome"][1]
        self._reports = mailbox.reports = Reports(device, work, (outcome[0], outcome[1]))
        mailbox.readers.append(self.ledger.note_read)
        self._takes_times = not isinstance(device, CudaDevice)
        self._learning = Learning(statistics, mailbox, work, self._memory.plan)
        self._num_pending = 0  # drafted tokens that the proposals sent last may have
        self._number = 0
        self._texts: dict[SlotRef, Resumed] = {}

    def load(self) -> None:
        """Write what never changes."""
        self._laws.load()

    def reset(self, keeps: int | None = None) -> None:
        """Forget every text and go back to the fewest cache rows."""
        require_nothing_kept(keeps or 0)
        self.session.reset_rows()
        self.ledger.reset()
        self._texts.clear()
        self._num_pending = 0
        for index in range(self.mailbox.num_rows):
            self._memory.vacate(index)

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""
        row = self.ledger.admit(slot, entry)
        self._laws.put(slot.index, entry.params)
        self._memory.put(row, entry.prompt)

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt; after the last one its text runs."""
        row = self.ledger.of(slot)
        chunk = row.entry.chunk(row.fed)
        self._feed(row, row.fed, chunk)
        self.ledger.fed(row, len(chunk))
        self._memory.put(row, row.entry.prompt)

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:
        """The slot's text has ended, or is wanted no more."""
        require_nothing_kept(num_kept)
        self.ledger.retire(slot)
        self._texts.pop(slot, None)
        self._memory.vacate(slot.index)

    def shift(self, shift: Shift) -> None:
        """Nothing is kept that could be shifted."""
        require_nothing_kept(shift.num_positions)

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """Nothing is shared."""
        del source, destination
        require_nothing_kept(num_positions)

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease, and its proposal with it."""
        row = self.ledger.move(source, destination)
        if source in self._texts:
            self._texts[destination] = self._texts.pop(source)
        held = min(row.most + self._num_pending, self._layout.kv.trunk_rows)
        self.session.bind_rows(self._layout.rows_for(held))
        self.session.copy_slot(source.index, destination.index, self._layout.trunk_rows(held))
        self._memory.move(source.index, destination.index, destination.generation)
        self._laws.move(source.index, destination.index)
        self.mailbox.note_move(source, destination)
        self.mailbox.send_proposal()

    def resume(self, texts: Sequence[Resumed]) -> None:
        """Go on after a rest, or in another mode, with all texts as they are now: proposals and
        what was prepared are void."""
        self.ledger.learn()
        self.ledger.forget_rounds()
        self._num_pending = 0
        for text in texts:
            row = self.ledger.of(text.slot)
            self._texts[text.slot] = text
            self.ledger.resume(row, len(text.tokens), text.num_fed, is_running=text.is_running)
            self._memory.put(row, text.tokens)

    def catch_up(self, slot: SlotRef) -> None:
        """Feed the next chunk that a slot's trunk lacks since ``resume``; nothing if it has all."""
        row, text = self.ledger.of(slot), self._texts.get(slot)
        if text is None or row.fed >= text.num_fed:
            return
        # Begun at a multiple like a prompt's, so that it fits the cache and its shapes are few.
        start = row.fed - row.fed % PROMPT_STEP
        chunk = text.tokens[start : min(start + PROMPT_CHUNK, text.num_fed)]
        self._feed(row, start, chunk)
        row.fed = start + len(chunk)
        self._memory.put(row, text.tokens)

    def draft(self, plan: RoundPlan | None = None) -> None:
        """Draft K tokens for every row, one after the other, and propose them (``sd``)."""
        started = perf_counter()
        plan = self._begin(plan)
        count, truncates = self.ledger.num_rows, self.ledger.truncates
        if count:
            self._bind(self.ledger.most + plan.num_draft + 1)
            root = self.phases.prepare(CallShape(0, count, 2, 1))
            step = self.phases.prepare(CallShape(0, count, 1, 1))
            key = ("draft", count, plan.num_draft, root.mask.shape[-1], truncates)
            self.phases.run(
                key,
                [root, step],
                lambda: self._drafting.chain(root, step, plan.num_draft, truncates=truncates),
            )
        self.mailbox.send_proposal()
        self._num_pending = plan.num_draft
        self._note_times(perf_counter() - started, is_exposed=True)

    def follow(self, plan: RoundPlan | None = None) -> None:  # noqa: ARG002 - others need it
        """Take in the verdict and propose nothing (``sd``)."""
        self._take_verdict(0)

    def prepare(self, plan: RoundPlan | None = None) -> None:
        """Root pass, forks and K branch steps: fill the speculation cache for this round.

        Raises UsageError for a plan with another fallback than ``zero``.
        """
        started = perf_counter()
        plan = self._begin(plan)
        require_supported("coupled", plan.fallback)
        self._learning.plan_forks(self._number + 1, plan.num_branches)
        count, truncates = self.ledger.num_rows, self.ledger.truncates
        if count:
            # All that the round needs, ``commit`` included: growing may move the caches.
            self._bind(self.ledger.most + self._num_pending + plan.num_draft)
            width = plan.num_branches
            root = self.phases.prepare(CallShape(0, count, 1, 1))
            steps = [
                self.phases.prepare(CallShape(0, count, width, width, copy=1 + depth))
                for depth in range(plan.num_draft)
            ]

            def enqueue() -> None:
                self._drafting.root(root, truncates=truncates)
                self._drafting.branches(steps, count, width, truncates=truncates)

            key = ("prepare", count, plan.num_draft, width, root.mask.shape[-1], truncates)
            self.phases.run(key, [root, *steps], enqueue)
        self._note_times(perf_counter() - started)

    def adopt(self, plan: RoundPlan | None = None) -> None:
        """Take in the verdict: a hit's tokens become the next proposal, a miss proposes nothing.

        ``plan`` is the one that was prepared under. A hit's cache rows are moved by ``commit``.
        """
        plan = self._current = plan or self.plan
        self._take_verdict(plan.num_branches)
        self.mailbox.send_proposal()
        # So that the reading of the round that judges the proposal can tell of it.
        self._reports.send(self._number, self._memory.rows["outcome"])
        self._num_pending = plan.num_draft

    def commit(self) -> None:
        """Move each winning branch's rows from scratch to the trunk, and keep its candidates."""
        count, width = self.ledger.num_rows, self._current.num_branches
        if count:
            caches = self.session.caches
            addresses = [cache.address for cache in caches]
            if addresses != self._in_table:
                self._work.put([(self._table["caches"], np.array(addresses, np.uint64))])
                self._in_table = addresses
            key = ("commit", count, width, caches[0].shape, tuple(addresses))
            self.phases.run(
                key,
                [],
                lambda: self._drafting.commit(caches, self._table["caches"], count, width),
            )

    def _begin(self, plan: RoundPlan | None) -> RoundPlan:
        self.ledger.learn()
        self._learning.learn()
        self._texts.clear()
        self._current = plan or self.plan
        return self._current

    def _take_verdict(self, num_branches: int) -> None:
        count = self.ledger.num_rows
        self.mailbox.receive_verdict()
        if count:
            self.phases.run(
                ("lookup", count, num_branches),
                [],
                lambda: self._drafting.lookup(self.mailbox.verdict_in, count, num_branches),
            )
        self._number += 1
        self.ledger.queue_round(self._number, 1 + self._num_pending)
        self._num_pending = 0

    def _feed(self, row: Held, start: int, chunk: Sequence[int]) -> None:
        known = self._memory.known(chunk)
        feed_chunk(
            self._work, self.session, self.phases, self._layout, row.slot.index, start, known
        )

    def _bind(self, num_positions: int) -> None:
        """Make room for that many positions of text, of what was built at most."""
        held = min(num_positions, self._layout.kv.trunk_rows)
        self.session.bind_rows(self._layout.rows_for(held))

    def _note_times(self, worked_s: float, *, is_exposed: bool = False) -> None:
        """On the host, where work ends with its call."""
        if self._takes_times:
            figures = self.mailbox.draft_figures.array
            figures[mail.DRAFT_S] += worked_s
            figures[mail.EXPOSED_S] += worked_s if is_exposed else 0.0
