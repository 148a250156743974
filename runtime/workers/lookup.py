"""Drafting without a draft: every proposal is looked up in the row's own text.

For ``sd`` alone: outcomes are prepared by a model. There is no engine and no cache, so a text is
known whole as soon as it joins, and nothing has to be caught up with after a rest. It is all the
drafting of a bundle without a draft. Beside a draft it takes the rounds that pass the draft by: the
target would wait twice for the draft's stream otherwise, which costs a round more than a lookup.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from engines.errors import DeviceError
from runtime.device.api import Buffer, Device
from runtime.kv.kept import Shift
from runtime.kv.slots import SlotRef
from runtime.spec.drafter import Drafter
from runtime.spec.lookup import SourceChoice
from runtime.spec.plan import RoundPlan
from runtime.workers import mailbox as mail
from runtime.workers.draft_row import DraftRow
from runtime.workers.draft_texts import DraftTexts, index_texts
from runtime.workers.entry import Entry, require_free
from runtime.workers.mailbox import Mailbox

_NO_LOGITS = np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class Texts:
    """Stands where other workers have a session: the texts are what this side's work uses."""

    kv_buffer: Buffer


class LookupWorker(DraftTexts):
    """See the module's text. All methods but the constructor run as work on one stream; here that
    may be the target's own, since a lookup takes some ten microseconds."""

    def __init__(
        self, device: Device, mailbox: Mailbox, choice: SourceChoice | None = None
    ) -> None:
        """Up to as many drafted tokens as the mailbox has room for. ``choice`` is that of a draft
        which works when this worker does not, so that both learn from each other's rounds."""
        plan = RoundPlan("sd", mailbox.num_draft, drafter=Drafter.LOOKUP)
        super().__init__(mailbox, plan, choice or SourceChoice(mailbox.num_draft))
        self.session = Texts(device.allocate("texts", (1,), np.dtype(np.int64)))

    def reset(self, keeps: int | None = None) -> None:  # noqa: ARG002 - there is no cache
        """Forget every text."""
        self.rows[:] = [None] * len(self.rows)
        self._count_rows()

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; it runs once the target was given all of its prompt."""
        held = self.rows[slot.index]
        require_free(None if held is None else held.slot, slot)
        row = DraftRow(slot, entry, _NO_LOGITS, list(entry.prompt), self.plan.num_draft)
        row.num_fed = entry.num_kept
        self.rows[slot.index] = row
        self._run_if_fed(row)

    def feed(self, slot: SlotRef) -> None:
        """The target was given the next chunk of the slot's prompt."""
        row = self._row(slot)
        row.num_fed += len(row.entry.chunk(row.num_fed))
        self._run_if_fed(row)

    def shift(self, shift: Shift) -> None:
        """There is no cache."""

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """The target was given so much of the slot's prompt."""
        self._row(source)
        row = self._row(destination)
        row.num_fed = num_positions
        self._run_if_fed(row)

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease. Each round proposes anew, so there is no
        proposal to go with it."""
        row, held = self._row(source), self.rows[destination.index]
        require_free(None if held is None else held.slot, destination)
        row.slot = destination
        self.rows[destination.index], self.rows[source.index] = row, None
        self._count_rows()

    def catch_up(self, slot: SlotRef) -> None:
        """Nothing is ever lacking."""
        self._row(slot)

    def draft(self, plan: RoundPlan | None = None) -> None:
        """Look up up to K tokens for every row, and propose them."""
        started = perf_counter()
        plan = self._set(plan)
        rows = self._running
        index_texts(rows)
        for row in rows:
            self._look_up(row, 0.0, plan.floor)
        self._propose()
        took_s = perf_counter() - started
        self.mailbox.draft_figures.array[[mail.DRAFT_S, mail.EXPOSED_S]] += took_s

    def follow(self, plan: RoundPlan | None = None) -> None:  # noqa: ARG002 - as other drafts
        """Take in the outcomes and propose nothing."""
        for row, emitted, accepted in self._outcomes():
            self._go_on(row, emitted, accepted)

    def prepare(self, plan: RoundPlan | None = None) -> None:  # noqa: ARG002 - as other drafts
        """Raises DeviceError: there is no model to prepare outcomes with."""
        raise DeviceError("a round of mode ssd was planned for a pair that only looks up")

    def adopt(self, plan: RoundPlan | None = None) -> None:
        """As ``prepare``."""
        self.prepare(plan)

    def commit(self) -> None:
        """As ``prepare``."""
        self.prepare()
