"""The target's side: feed prompts, verify proposals, write outcomes.

Row i of a call is slot i. A row without a running text is a dummy: it feeds one token at its
frontier, the first position whose cache row holds nothing yet, so it overwrites nothing alive.

    slot holds                 length (frontier + 1)      judged
    nobody                     1                          no
    a prompt, partly fed       tokens fed + 1             no
    a running text             its tokens                 yes, unless it sits the round out
    a text that has ended      1                          no

The worker itself ends a text at a stop id and at its limit: the host queues the next round before
it has read the last one, and retires what ended a round later.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from engines.errors import BackendError
from runtime.backends.api import CallShape, Session, Step
from runtime.kv.capacity import require_capacity
from runtime.kv.layout import SlotLayout
from runtime.kv.slots import SlotRef
from runtime.sampling.api import Rule
from runtime.sampling.logprobs import token_logprobs
from runtime.sampling.proposal import Nothing
from runtime.workers import mailbox as mail
from runtime.workers.calls import place_rows
from runtime.workers.entry import Entry, require_free, require_lease
from runtime.workers.mailbox import Kind, Mailbox
from runtime.workers.prefill import prefill_chunk


class TargetWorker:
    """Verification of a batch. All methods but the constructor run as work on the target's
    stream. ``lengths`` has one writer, this class; see the table above."""

    def __init__(
        self, session: Session, rule: Rule, mailbox: Mailbox, *, min_tokens: int = 1
    ) -> None:
        """``min_tokens`` 2 pads one-token calls, for an engine whose one-token calls round
        differently (``runtime.workers.probe``). Raises CapacityError for a mailbox of more
        drafted tokens than the engine was built for."""
        self.session = session
        self.rule = rule
        self.mailbox = mailbox
        self.layout = SlotLayout(session.manifest.kv, 0)
        self.min_tokens = min_tokens
        require_capacity(
            session.manifest.kv,
            session.manifest.limits,
            num_draft=mailbox.num_draft,
            num_branches=0,
        )
        size = mailbox.num_rows
        self.slots: list[SlotRef | None] = [None] * size
        self.lengths = np.ones(size, np.int64)
        self._entries: list[Entry | None] = [None] * size
        self._generations = np.zeros(size, np.int64)  # 0 is nobody's
        self._pending = np.zeros(size, np.int64)  # the text's last token: it has no cache row yet
        self._limits = np.zeros(size, np.int64)
        self._running = np.zeros(size, bool)
        self._figures = np.zeros(mail.VERIFY_S + 1)
        self._num_rows = 0
        self._judged: list[int] = []
        self._step: Step | None = None

    def reset(self) -> None:
        """Forget every text and go back to the fewest cache rows."""
        self.session.reset_rows()
        for index in range(len(self.slots)):
            self._vacate(index)
        self._count_rows()

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""
        require_free(self.slots[slot.index], slot)
        self.slots[slot.index] = slot
        self._entries[slot.index] = entry
        self._generations[slot.index] = slot.generation
        self._limits[slot.index] = entry.limit
        self.lengths[slot.index] = 1
        self._run_if_fed(slot.index, entry)

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt; after the last one its text runs."""
        entry = self._entry(slot)
        start = int(self.lengths[slot.index]) - 1
        chunk = entry.chunk(start)
        prefill_chunk(self.session, self.layout, slot.index, start, chunk)
        self.lengths[slot.index] += len(chunk)
        self._run_if_fed(slot.index, entry)

    def retire(self, slot: SlotRef) -> None:
        """The slot's text has ended, or is wanted no more."""
        self._entry(slot)
        self._vacate(slot.index)
        self._count_rows()

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease."""
        entry = self._entry(source)
        require_free(self.slots[destination.index], destination)
        old, new = source.index, destination.index
        fed = int(self.lengths[old]) - 1
        self.session.bind_rows(self.layout.rows_for(fed))
        self.session.copy_slot(old, new, self.layout.trunk_rows(fed))
        self.slots[new], self._entries[new] = destination, entry
        self._generations[new] = destination.generation
        for values in (self.lengths, self._pending, self._limits, self._running):
            values[new] = values[old]
        self._vacate(old)
        self._count_rows()

    def verify(self, num_draft: int | None = None, place: int = 0, *, sends: bool = True) -> None:
        """Judge proposals, one call for all rows; write the outcomes where the host will read
        them, ``place``, and where it ``sends`` also as the message to the draft.

        The proposals in the mailbox have up to ``num_draft`` tokens (None: K). With 0 they are
        not for this round and are not looked at: each text gets its next token. Without a row to
        judge nothing is called: all running ones sit the round out, or none runs any more.
        """
        started = perf_counter()
        takes = num_draft is None or num_draft > 0
        count = self._num_rows
        readings = self.mailbox.readings[place][0].array
        readings[:, mail.KIND] = Kind.SKIP
        readings[:, mail.GENERATION] = self._generations
        running = self._running[:count]
        cells = self.mailbox.proposals.array[:count]
        if takes:
            mine = running & (cells[:, mail.GENERATION] == self._generations[:count])
            kinds = cells[:, mail.KIND] * mine
            judged = running & (kinds != Kind.SKIP)
            readings[:count, self.mailbox.rank_at] = cells[:, -1] * mine
        else:
            mine, kinds = np.zeros(count, bool), np.zeros(count, np.int64)
            judged = running.copy()
            readings[:, self.mailbox.rank_at] = 0
        self._judged = np.flatnonzero(judged).tolist()
        if self._judged:
            self._verify(place, cells, mine, kinds, judged)
        self._note_times(place, started, takes=takes)
        if sends:
            self.mailbox.send(place)

    def _verify(
        self,
        place: int,
        cells: np.ndarray,
        mine: np.ndarray,
        kinds: np.ndarray,
        judged: np.ndarray,
    ) -> None:
        count = len(mine)
        # Where no proposal is for this round the draft may be writing them: not one cell is read.
        has_drafts = bool(mine.any())
        num_drafts = cells[:, mail.COUNT] * mine if has_drafts else np.zeros(count, np.int64)
        width = max(self.min_tokens, 1 + max(num_drafts.tolist()))
        starts = self.lengths[:count] - 1
        self.session.bind_rows(self.layout.rows_for(int(starts.max()) + width))
        step = self._step = self.session.prepare(CallShape(0, count, width, width))
        step.tokens[:, 0] = self._pending[:count]
        if has_drafts:
            drafts = cells[:, mail.PROPOSED : mail.PROPOSED + width - 1]
            np.multiply(drafts, mine[:, None], out=step.tokens[:, 1:])
        else:
            step.tokens[:, 1:] = 0
        place_rows(step, self.layout, starts)
        step.logit_rows[:] = np.arange(width)
        step.num_draft[:] = num_drafts
        step.run()
        accepted, bonus = self._judge(step, mine)
        self.mailbox.decide_all(
            place,
            self._generations[:count],
            np.where(judged, kinds, Kind.SKIP),
            num_drafts,
            accepted,
            bonus,
            step.tokens[:, 1 : 1 + self.mailbox.num_draft],
        )
        self.lengths[:count] += (accepted + 1) * judged
        self._pending[:count] = np.where(judged, bonus, self._pending[:count])
        self._end_texts(place)

    def _end_texts(self, place: int) -> None:
        """Texts of the rows just judged that have come to their end run no more."""
        reading: list[list[int]] = self.mailbox.readings[place][0].array.tolist()
        ended = [index for index in self._judged if self._has_ended(index, reading[index])]
        for index in ended:
            self._running[index] = False
            self.lengths[index] = 1
            self._pending[index] = 0
        if ended:
            self._count_rows()

    def _has_ended(self, index: int, cells: list[int]) -> bool:
        entry = self._entries[index]
        assert entry is not None
        emitted = cells[mail.EMITTED : mail.EMITTED + cells[mail.ACCEPTED] + 1]
        reached = self.lengths[index] >= self._limits[index]
        return bool(reached) or not entry.stop_ids.isdisjoint(emitted)

    def _judge(self, step: Step, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Accepted counts and bonus tokens, int64 [B] each: from the graph for greedy rows, from
        the rule for the others."""
        accepted, bonus = step.accepted.copy(), step.next.copy()
        in_graph = []
        for index in self._judged:
            entry = self._entries[index]
            assert entry is not None
            length = int(self.lengths[index])
            if entry.params.chooses_in_graph(length):
                in_graph.append(index)
                continue
            generation = int(self._generations[index])
            is_mine = bool(mine[index])
            proposal = self.mailbox.proposal(index, generation) if is_mine else Nothing()
            verdict = self.rule.verify(step.logits[index], proposal, entry.params, length)
            accepted[index], bonus[index] = verdict.accepted, verdict.bonus
        if in_graph:
            _require_finite(step.logits[in_graph, accepted[in_graph], bonus[in_graph]])
        return accepted, bonus

    def score(self, place: int = 0) -> None:
        """Log-probabilities of the round's emitted tokens, for the rows that ask. Behind the
        outcomes, and before the step's logits are written again."""
        for index in self._judged:
            entry = self._entries[index]
            assert entry is not None
            assert self._step is not None
            if entry.num_logprobs is None:
                continue
            cells = self.mailbox.readings[place][0].array[index].tolist()
            tokens = cells[mail.EMITTED : mail.EMITTED + cells[mail.ACCEPTED] + 1]
            self.mailbox.logprobs[place][index] = [
                token_logprobs(self._step.logits[index, place], token, entry.num_logprobs)
                for place, token in enumerate(tokens)
            ]

    def _entry(self, slot: SlotRef) -> Entry:
        require_lease(self.slots[slot.index], slot)
        entry = self._entries[slot.index]
        assert entry is not None
        return entry

    def _run_if_fed(self, index: int, entry: Entry) -> None:
        if self.lengths[index] == len(entry.prompt):
            self._pending[index] = entry.prompt[-1]
            self._running[index] = True
            self._count_rows()

    def _vacate(self, index: int) -> None:
        self.slots[index] = self._entries[index] = None
        self._generations[index] = self._pending[index] = 0
        self.lengths[index] = 1
        self._running[index] = False

    def _count_rows(self) -> None:
        """Rows of the next call: up to the last slot whose text runs."""
        self._num_rows = 1 + max(np.flatnonzero(self._running).tolist(), default=-1)

    def _note_times(self, place: int, started: float, *, takes: bool) -> None:
        now, figures = perf_counter(), self._figures
        if takes:
            figures[: mail.NUM_DRAFT_FIGURES] = self.mailbox.draft_figures.array
        figures[mail.STARTED_AT] = started
        figures[mail.DECIDED_AT] = now
        figures[mail.VERIFY_S] += now - started
        self.mailbox.readings[place][1].array[:] = figures


def _require_finite(logits: np.ndarray) -> None:
    """Of the chosen tokens alone: a NaN on the way makes every logit NaN."""
    if not np.isfinite(logits).all():
        wrong = logits[~np.isfinite(logits)][0]
        raise BackendError(
            f"the target gives {wrong} as its largest logit, so its weights are damaged; "
            "check the bundle: python -m export inspect BUNDLE"
        )
