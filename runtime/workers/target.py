"""The target's side: feed prompts, verify proposals, write outcomes.

Row i of a call is slot i. A row without a running text is a dummy: it feeds one token at its
frontier, the first position whose cache row holds nothing yet, so it overwrites nothing alive.

    slot holds                 length (frontier + 1)      judged
    nobody                     rows kept + 1              no
    a prompt, partly fed       tokens fed + 1             no
    a running text             its tokens                 yes, unless it sits the round out
    a text that has ended      its tokens                 no

The worker itself ends a text at a stop id and at its limit: the host queues the next round before
it has read the last one, and retires what ended a round later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from time import perf_counter

import numpy as np

from engines.errors import BackendError, CapacityError
from runtime.backends.api import CallShape, KeepingSession, Step
from runtime.kv.capacity import require_capacity
from runtime.kv.kept import Shift
from runtime.kv.layout import SlotLayout
from runtime.kv.slots import SlotRef
from runtime.sampling.api import Rule
from runtime.sampling.logprobs import token_logprobs
from runtime.sampling.proposal import Nothing
from runtime.sampling.text_law import TextLaw
from runtime.workers import mailbox as mail
from runtime.workers.calls import place_rows
from runtime.workers.entry import Entry, require_free, require_kept, require_lease
from runtime.workers.mailbox import Kind, Mailbox
from runtime.workers.prefill import prefill_chunk


class TargetWorker:
    """Verification of a batch. All methods but the constructor run as work on the target's
    stream. ``lengths`` has one writer, this class; see the table above."""

    def __init__(
        self, session: KeepingSession, rule: Rule, mailbox: Mailbox, *, min_tokens: int = 1
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
        # Plain lists: for a few integers a row arrays take two to three times as long.
        # Of a text that has ended: a dummy behind it still lies in the cache.
        self._last_place = session.manifest.limits.max_len - 1
        self.lengths = [1] * size
        self._entries: list[Entry | None] = [None] * size
        self._texts: list[TextLaw | None] = [None] * size  # of rows whose law hangs on their text
        self._generations = [0] * size  # 0 is nobody's
        self._pending = [0] * size  # the text's last token: it has no cache row yet
        self._limits = [0] * size
        self._running = [False] * size
        self._figures = [0.0] * mail.NUM_FIGURES
        self._num_rows = 0
        self._nothing = [0] * mailbox.proposals.shape[1]  # proposed by nobody, so to nobody
        self._judged: list[int] = []
        self._step: Step | None = None

    def reset(self, keeps: int | None = None) -> None:
        """Forget every text and go back to the fewest cache rows; where free slots keep something,
        to those that hold ``keeps`` positions."""
        if keeps is None:
            self.session.reset_rows()
            for index in range(len(self.slots)):
                self._vacate(index)
        else:
            kept = [self.layout.rows_for(length - 1) for length in self.lengths]
            self.session.shrink_rows(self.layout.rows_for(keeps), kept)
        self._count_rows()

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""
        require_free(self.slots[slot.index], slot)
        self.slots[slot.index] = slot
        self._entries[slot.index] = entry
        self._generations[slot.index] = slot.generation
        self._limits[slot.index] = entry.limit
        if entry.params.follows_text:
            vocab_size = self.session.manifest.model.vocab_size
            self._texts[slot.index] = TextLaw(
                entry.params, entry.prompt, vocab_size, entry.constraint
            )
        require_kept(entry, self.lengths[slot.index] - 1)
        self.lengths[slot.index] = 1 + entry.num_kept
        self._run_if_fed(slot.index, entry)

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt; after the last one its text runs."""
        entry = self._entry(slot)
        start = self.lengths[slot.index] - 1
        chunk = entry.chunk(start)
        prefill_chunk(self.session, self.layout, slot.index, start, chunk)
        self.lengths[slot.index] += len(chunk)
        self._run_if_fed(slot.index, entry)

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:
        """The slot's text has ended, or is wanted no more. Its first ``num_kept`` positions stay
        where they are."""
        self._entry(slot)
        self._vacate(slot.index, num_kept)
        self._count_rows()

    def shift(self, shift: Shift) -> None:
        """What a free slot keeps goes to another."""
        source, destination = shift.source, shift.destination
        lengths = self.lengths
        if shift.swaps:
            most = max(lengths[source], lengths[destination]) - 1
            self.session.swap_slots(source, destination, self.layout.trunk_rows(most))
            lengths[source], lengths[destination] = lengths[destination], lengths[source]
        else:
            self._copy(source, destination, shift.num_positions)

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """A text whose prompt is being fed begins as another, whose rows it gets."""
        require_lease(self.slots[source.index], source)
        entry = self._entry(destination)
        self._copy(source.index, destination.index, num_positions)
        self._run_if_fed(destination.index, entry)

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease; what that kept goes to its old one."""
        entry = self._entry(source)
        require_free(self.slots[destination.index], destination)
        old, new = source.index, destination.index
        fed, kept = self.lengths[old] - 1, self.lengths[new] - 1
        self.session.bind_rows(self.layout.rows_for(fed))
        if kept:
            self.session.swap_slots(old, new, self.layout.trunk_rows(max(fed, kept)))
        else:
            self.session.copy_slot(old, new, self.layout.trunk_rows(fed))
        self.slots[new], self._entries[new] = destination, entry
        self._texts[new] = self._texts[old]
        self._generations[new] = destination.generation
        for values in (self.lengths, self._pending, self._limits):
            values[new] = values[old]
        self._running[new] = self._running[old]
        self.lengths[old] = kept + 1
        self._vacate(old, kept)
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
        proposals = self._proposals() if takes else [self._nothing] * self._num_rows
        self._judged = [
            index
            for index, proposal in enumerate(proposals)
            if self._running[index] and proposal[mail.KIND] != Kind.SKIP
        ]
        blocks = self._verify(proposals) if self._judged else {}
        outcomes = []
        for index, generation in enumerate(self._generations):
            cells = proposals[index] if index < len(proposals) else self._nothing
            kind = cells[mail.KIND] if index in blocks else Kind.SKIP
            outcomes.append(self.mailbox.outcome(generation, kind, cells, blocks.get(index, ())))
        self.mailbox.decide_all(place, outcomes)
        self._end_texts(blocks)
        self._note_times(place, started, takes=takes)
        if sends:
            self.mailbox.send(place)

    def _proposals(self) -> list[list[int]]:
        """The mailbox's, of the rows of a call; nothing where one is for another text."""
        cells: list[list[int]] = self.mailbox.proposals.array[: self._num_rows].tolist()
        return [
            each
            if self._running[index] and each[mail.GENERATION] == self._generations[index]
            else self._nothing
            for index, each in enumerate(cells)
        ]

    def _verify(self, proposals: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """One call for all rows: the tokens that each judged one emits."""
        count = len(proposals)
        num_drafts = [cells[mail.COUNT] for cells in proposals]
        width = max(self.min_tokens, 1 + max(num_drafts))
        lengths = self.lengths[:count]
        self.session.bind_rows(self.layout.rows_for(max(lengths) - 1 + width))
        step = self._step = self.session.prepare(CallShape(0, count, width, width))
        step.tokens[:] = [
            [self._pending[index], *cells[mail.PROPOSED : mail.PROPOSED + width - 1]]
            for index, cells in enumerate(proposals)
        ]
        place_rows(step, self.layout, np.array(lengths) - 1)
        step.logit_rows[:] = np.arange(width)
        step.num_draft[:] = num_drafts
        step.run()
        return self._judge(step, proposals)

    def _judge(self, step: Step, proposals: Sequence[Sequence[int]]) -> dict[int, list[int]]:
        """From the graph for greedy rows, from the rule for the others."""
        accepted, bonus = step.accepted.tolist(), step.next.tolist()
        blocks = {}
        for index in self._judged:
            entry, length = self._entries[index], self.lengths[index]
            assert entry is not None
            if entry.params.chooses_in_graph(length):
                _require_finite(step.logits[index, accepted[index], bonus[index]])
            else:
                generation = self._generations[index]
                is_mine = proposals[index] is not self._nothing
                proposal = self.mailbox.proposal(index, generation) if is_mine else Nothing()
                verdict = self.rule.verify(
                    step.logits[index], proposal, entry.params, length, self._texts[index]
                )
                accepted[index], bonus[index] = verdict.accepted, verdict.bonus
            drafted = proposals[index][mail.PROPOSED : mail.PROPOSED + accepted[index]]
            blocks[index] = [*drafted, bonus[index]]
        return blocks

    def _end_texts(self, blocks: Mapping[int, Sequence[int]]) -> None:
        """Texts go on by the tokens emitted; those that have come to their end run no more."""
        has_ended = False
        for index, emitted in blocks.items():
            entry = self._entries[index]
            assert entry is not None
            self.lengths[index] += len(emitted)
            self._pending[index] = emitted[-1]
            reached = self.lengths[index] >= self._limits[index]
            if reached or not entry.stop_ids.isdisjoint(emitted):
                self._running[index] = False
                self.lengths[index] = min(self.lengths[index], self._last_place)
                self._pending[index] = 0
                has_ended = True
        if has_ended:
            self._count_rows()

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

    def _copy(self, source: int, destination: int, num_positions: int) -> None:
        if num_positions >= self.lengths[source]:
            raise CapacityError(
                f"{num_positions} positions asked of slot {source}, which holds "
                f"{self.lengths[source] - 1}"
            )
        self.session.copy_slot(source, destination, self.layout.trunk_rows(num_positions))
        self.lengths[destination] = num_positions + 1

    def _vacate(self, index: int, num_kept: int = 0) -> None:
        self.slots[index] = self._entries[index] = self._texts[index] = None
        self._generations[index] = self._pending[index] = 0
        self.lengths[index] = min(self.lengths[index], num_kept + 1)
        self._running[index] = False

    def _count_rows(self) -> None:
        """Rows of the next call: up to the last slot whose text runs."""
        runs = [index for index, is_running in enumerate(self._running) if is_running]
        self._num_rows = 1 + max(runs, default=-1)

    def _note_times(self, place: int, started: float, *, takes: bool) -> None:
        now, figures = perf_counter(), self._figures
        if takes:
            figures[: mail.NUM_DRAFT_FIGURES] = self.mailbox.draft_figures.array.tolist()
        figures[mail.STARTED_AT] = started
        figures[mail.DECIDED_AT] = now
        figures[mail.VERIFY_S] += now - started
        if self._step is not None:
            figures[mail.SPAN] = self._step.mask.shape[-1]
        self.mailbox.readings[place][1].array[:] = figures


def _require_finite(logit: float) -> None:
    """Of the chosen token alone: a NaN on the way makes every logit NaN."""
    if not isfinite(logit):
        raise BackendError(
            f"the target gives {logit} as its largest logit, so its weights are damaged; "
            "check the bundle: python -m export inspect BUNDLE"
        )
