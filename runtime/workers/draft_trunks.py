"""The draft's trunks: who has which slot, prompts, and what was not fed as it came.

What a row's trunk holds after each event stands in ``runtime.workers.draft_row``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from engines.profiles import PROMPT_CHUNK, PROMPT_STEP
from runtime.backends.api import KeepingSession
from runtime.kv.capacity import require_capacity
from runtime.kv.kept import Shift
from runtime.kv.slots import SlotRef
from runtime.sampling.api import Rule
from runtime.spec.lookup import SourceChoice
from runtime.spec.plan import RoundPlan
from runtime.workers.draft_calls import DraftCalls
from runtime.workers.draft_row import DraftRow
from runtime.workers.draft_texts import DraftTexts
from runtime.workers.entry import Entry, require_free
from runtime.workers.mailbox import Mailbox
from runtime.workers.prefill import prefill_chunk


class DraftTrunks(DraftTexts):
    """Texts with an engine's cache under them."""

    def __init__(
        self,
        session: KeepingSession,
        rule: Rule,
        mailbox: Mailbox,
        plan: RoundPlan,
        alpha: float | None = None,
    ) -> None:
        """``plan`` as for DraftTexts, ``alpha`` as for SourceChoice. Raises CapacityError where K
        and W are beyond what the engine was built for."""
        super().__init__(mailbox, plan, SourceChoice(mailbox.num_draft, alpha))
        manifest = session.manifest
        require_capacity(
            manifest.kv,
            manifest.limits,
            num_draft=plan.num_draft,
            num_branches=plan.num_branches,
        )
        self.session = session
        self.rule = rule
        self.num_draft = plan.num_draft
        self._calls = DraftCalls(session, rule)
        self._logits = [
            np.zeros((plan.num_draft + 1, manifest.model.output_vocab), np.float32)
            for _ in self.rows
        ]

    def reset(self, keeps: int | None = None) -> None:
        """Forget every text and go back to the fewest cache rows; where free slots keep something,
        to those that hold ``keeps`` positions."""
        layout, kept = self._calls.layout, self._calls.kept
        if keeps is None:
            self.session.reset_rows()
            kept[:] = [0] * len(kept)
        else:
            self.session.shrink_rows(layout.rows_for(keeps), [layout.rows_for(num) for num in kept])
        self.rows[:] = [None] * len(self.rows)
        self._count_rows()

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""
        index = slot.index
        held = self.rows[index]
        require_free(None if held is None else held.slot, slot)
        row = DraftRow(slot, entry, self._logits[index], list(entry.prompt), self.num_draft)
        row.trunk = min(self._calls.kept[index], entry.num_kept)
        row.num_fed = entry.num_kept
        self.rows[index] = row
        self._calls.kept[index] = 0
        self._run_if_fed(row)

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt, and what the trunk lacks in front of it; after
        the last one its text runs."""
        row = self._row(slot)
        row.num_fed += len(row.entry.chunk(row.num_fed))
        while row.trunk < row.num_fed:
            self._feed_on(row, row.num_fed)
        self._run_if_fed(row)

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:
        """The slot's text has ended, or is wanted no more. Of its first ``num_kept`` positions
        those stay that the trunk holds."""
        row = self._row(slot)
        super().retire(slot)
        # After a rest the text is longer than known here, and may differ from the last proposal.
        self._calls.kept[slot.index] = min(row.trunk, len(row.tokens), num_kept)

    def shift(self, shift: Shift) -> None:
        """What a free slot keeps goes to another."""
        source, destination = shift.source, shift.destination
        kept, trunk_rows = self._calls.kept, self._calls.layout.trunk_rows
        if shift.swaps:
            most = max(kept[source], kept[destination])
            self.session.swap_slots(source, destination, trunk_rows(most))
            kept[source], kept[destination] = kept[destination], kept[source]
        else:
            kept[destination] = min(kept[source], shift.num_positions)
            self.session.copy_slot(source, destination, trunk_rows(kept[destination]))

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """A text whose prompt is being fed begins as another, whose rows it gets."""
        other, row = self._row(source), self._row(destination)
        held = min(other.trunk, len(other.tokens), num_positions)
        if held > row.trunk:
            rows = self._calls.layout.trunk_rows(held)
            self.session.copy_slot(source.index, destination.index, rows)
            row.trunk = held
        row.num_fed = num_positions
        self._run_if_fed(row)

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease, and its proposal with it; what that slot
        kept goes to its old one."""
        row = self._row(source)
        old, new = source.index, destination.index
        kept = self._calls.kept
        held = self.rows[new]
        require_free(None if held is None else held.slot, destination)
        self._calls.bind(row.trunk)
        if kept[new]:
            most = max(kept[new], row.trunk)
            self.session.swap_slots(old, new, self._calls.layout.trunk_rows(most))
        else:
            self.session.copy_slot(old, new, self._calls.layout.trunk_rows(row.trunk))
        kept[old], kept[new] = kept[new], 0
        self.mailbox.move(source, destination)
        # Kept logits are the slot's memory and stay with their row.
        self._logits[old], self._logits[new] = self._logits[new], self._logits[old]
        row.slot = destination
        self.rows[new], self.rows[old] = row, None
        self._count_rows()

    def catch_up(self, slot: SlotRef) -> None:
        """Feed the next chunk that a slot's trunk lacks since ``resume``; nothing if it has all."""
        row = self._row(slot)
        if row.trunk < row.num_fed:
            self._feed_on(row, row.num_fed)

    def _take_in(self, rows: Iterable[DraftRow]) -> None:
        """Feed most of what the trunks lack after rounds of copies, whose drafts were not fed; a
        call of drafting is not wider than K + 1."""
        for row in rows:
            while len(row.tokens) - row.trunk > self.num_draft + 1:
                self._feed_on(row, len(row.tokens) - 1)

    def _feed_on(self, row: DraftRow, end: int) -> None:
        """Feed the next chunk, up to position ``end`` at most."""
        # Begun at a multiple like a prompt's, so that it fits the cache and its shapes are few.
        start = row.trunk - row.trunk % PROMPT_STEP
        self._feed(row, start, row.tokens[start : min(start + PROMPT_CHUNK, end)])

    def _feed(self, row: DraftRow, start: int, chunk: Sequence[int]) -> None:
        known = self._calls.known(chunk)
        prefill_chunk(self.session, self._calls.layout, row.slot.index, start, known)
        row.trunk = start + len(chunk)
