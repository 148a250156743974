"""The target's side of a round in device memory. The methods are ``runtime.workers.target``'s.

Row i of a call is slot i, and a row without a running text is a dummy, as there. What differs:

- Every method only enqueues. The host learns of a round from its reading (``readings``).
- A text ends by itself at its limit. Stop tokens are the host's: it finds one in a reading and
  retires the text, when one more round has been queued; that round's row concerns nobody.
- Lengths are device memory. The host has bounds of them, by which it binds cache rows (``ledger``).
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from plugins.lookup import kernel as lookup
from plugins.take import kernel as take
from runtime.backends.api import CallShape, DeviceSession, DeviceStep
from runtime.device.api import Device
from runtime.kv.capacity import require_capacity
from runtime.kv.kept import Shift
from runtime.kv.layout import SlotLayout
from runtime.kv.slots import SlotRef
from runtime.resident.calls import feed_chunk, mask_trunk
from runtime.resident.exchange import Exchange
from runtime.resident.host_draft import HostDraftExchange
from runtime.resident.kernels import Work
from runtime.resident.laws import TargetLaws
from runtime.resident.ledger import Held, Ledger
from runtime.resident.phases import Phases
from runtime.resident.readings import Scored
from runtime.resident.slabs import Slab
from runtime.resident.support import require_nothing_kept
from runtime.resident.verdicts import outcome_width, unjudged
from runtime.workers import mailbox as mail
from runtime.workers.entry import Entry


class ResidentTarget:
    """Verification of a batch. All methods but the constructor are work of the target's stream."""

    def __init__(
        self,
        session: DeviceSession,
        device: Device,
        work: Work,
        mailbox: Exchange | HostDraftExchange,
        *,
        min_tokens: int = 1,
    ) -> None:
        """``min_tokens`` as for TargetWorker. Allocates, so it is for the host thread.

        Raises CapacityError for a mailbox of more drafted tokens than the engine was built for,
        DeviceError where there is too little memory.
        """
        manifest, size = session.manifest, mailbox.num_rows
        require_capacity(manifest.kv, manifest.limits, num_draft=mailbox.num_draft, num_branches=0)
        self.session = session
        self.mailbox = mailbox
        self.min_tokens = min_tokens
        self.ledger = Ledger(size)
        self.phases = Phases(device, session)
        self._layout = SlotLayout(manifest.kv, 0)
        self._work = work
        self._width = mailbox.max_draft + 1
        self._rows = Slab(
            device,
            "target rows",
            {
                "generation": ("int64", (size,)),
                "limit": ("int64", (size,)),
                "round": ("int64", (size,)),
                "active": ("bool", (size,)),
                "length": ("int64", (size,)),
                "kind": ("int64", (size,)),
                "verify_tokens": ("int64", (size, self._width)),
                "verify_positions": ("int64", (size, self._width)),
                "verify_write_at": ("int64", (size,)),
                "num_draft": ("int64", (size,)),
                "status": ("int32", (size,)),
                "outcome": ("int64", (size, outcome_width(self._width - 1))),
            },
        )
        widths = range(1, self._width + 1)
        calls = [(batch, width) for batch in range(1, size + 1) for width in widths]
        self._laws = TargetLaws(device, work, manifest, size, calls)
        self._step: DeviceStep | None = None
        self._number = 0
        self._verify_s = 0.0

    def reset(self, keeps: int | None = None) -> None:
        """Forget every text and go back to the fewest cache rows."""
        require_nothing_kept(keeps or 0)
        self.session.reset_rows()
        self.ledger.reset()
        for index in range(self.mailbox.num_rows):
            self._vacate(index)

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""
        row = self.ledger.admit(slot, entry)
        self._laws.put(slot.index, entry.params)
        self._put(row)

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt; after the last one its text runs."""
        row = self.ledger.of(slot)
        chunk = row.entry.chunk(row.fed)
        feed_chunk(self._work, self.session, self.phases, self._layout, slot.index, row.fed, chunk)
        self.ledger.fed(row, len(chunk))
        self._put(row)

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:
        """The slot's text has ended, or is wanted no more."""
        require_nothing_kept(num_kept)
        self.ledger.retire(slot)
        self._vacate(slot.index)

    def shift(self, shift: Shift) -> None:
        """Nothing is kept that could be shifted."""
        require_nothing_kept(shift.num_positions)

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """Nothing is shared."""
        del source, destination
        require_nothing_kept(num_positions)

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease."""
        row = self.ledger.move(source, destination)
        old, new = source.index, destination.index
        self.session.bind_rows(self._layout.rows_for(row.most - 1))
        self.session.copy_slot(old, new, self._layout.trunk_rows(row.most - 1))
        for field in self._rows.shapes:
            self._work.copy(
                self._rows.row(field, old),
                self._rows.row(field, new),
                self._rows.row_bytes(field),
            )
        self._work.put(self._rows.segments(new, {"generation": destination.generation}))
        self._laws.move(old, new)
        self._vacate(old)

    def verify(self, num_draft: int | None = None, place: int = 0, *, sends: bool = True) -> None:
        """Enqueue the judgement of proposals of up to ``num_draft`` tokens (None: K; 0: of none),
        its reading to ``place``, and where it ``sends`` the verdict to the draft."""
        started = perf_counter()
        self.ledger.learn()
        drafted = self.mailbox.num_draft if num_draft is None else num_draft
        width = max(self.min_tokens, 1 + drafted)
        if self.ledger.num_rows:
            self._verify(width, takes=drafted > 0)
        self._number += 1
        self.ledger.queue_round(self._number, width)
        on_read = partial(self.ledger.note_read, self._number)
        self.mailbox.begin(place, width, on_read, takes=drafted > 0, sends=sends)
        if sends:
            self.mailbox.send_verdict(self._rows["outcome"])
        reading, figures = self.mailbox.readings[place]
        self._work.copy(self._rows["outcome"], reading.address, reading.nbytes)
        if drafted:
            figures.array[: mail.NUM_DRAFT_FIGURES] = self.mailbox.draft_figures.array
        now = perf_counter()
        self._verify_s += now - started
        figures.array[mail.STARTED_AT : mail.SPAN] = started, now, self._verify_s

    def score(self, place: int = 0) -> None:
        """Enqueue that the logits of the rows that ask for log-probabilities come to the host."""
        step, flight = self._step, self.mailbox.flights[place]
        if step is None or not self.ledger.num_rows:
            return
        _, each, vocab = step.logits.shape
        nbytes = each * vocab * step.logits.dtype.itemsize
        target = self.mailbox.scored_logits[place]
        for index, row in enumerate(self.ledger.rows[: self.ledger.num_rows]):
            if row is None or row.entry.num_logprobs is None:
                continue
            source = step.logits.address + index * nbytes
            self._work.copy(
                source, target.address + index * target.nbytes // target.shape[0], nbytes
            )
            flight.scored.append(Scored(index, row.entry.num_logprobs))

    def _verify(self, width: int, *, takes: bool) -> None:
        count, truncates = self.ledger.num_rows, self.ledger.truncates
        self.session.bind_rows(self._layout.rows_for(self.ledger.most - 1 + width))
        step = self._step = self.phases.prepare(CallShape(0, count, width, width))
        message = self.mailbox.receive_proposal() if takes else {}
        rows, work = self._rows, self._work

        def enqueue() -> None:
            work.launch(
                "take",
                take.ENTRY,
                {
                    **message,
                    **rows.fields("generation", "active", "limit", "length"),
                    **rows.fields("verify_tokens", "num_draft", "kind"),
                    "tokens": step.tokens.address,
                    "positions": step.positions.address,
                    "write_at": step.write_at.address,
                    "call_num_draft": step.num_draft.address,
                    "logit_rows": step.logit_rows.address,
                    "num_rows": count,
                    "num_tokens": width,
                    "max_draft": self.mailbox.max_draft,
                    "scratch_rows": self._layout.kv.scratch_rows,
                },
                num_blocks=count,
                num_threads=take.NUM_THREADS,
            )
            mask_trunk(work, step, self._layout)
            step.enqueue()
            self._laws.enqueue(
                step.logits,
                drafts=rows["verify_tokens"] + 8,
                drafts_stride=self._width,
                num_draft=rows["num_draft"],
                length=rows["length"],
                accepted=self.mailbox.verdict["accepted"],
                bonus=self.mailbox.verdict["bonus"],
                status=rows["status"],
                truncates=truncates,
            )
            self._advance(count)

        key = ("verify", count, width, step.mask.shape[-1], takes, truncates)
        self.phases.run(key, [step], enqueue)

    def _advance(self, count: int) -> None:
        """The texts go on by their outcomes, as a lookup where nothing was prepared does it."""
        self._work.launch(
            "lookup",
            lookup.ENTRY,
            {
                **self._rows.addresses,
                **self.mailbox.verdict.addresses,
                "num_rows": count,
                "num_slots": self.mailbox.num_rows,
                "max_draft": self.mailbox.max_draft,
                "target_scratch": self._layout.kv.scratch_rows,
            },
            num_blocks=count,
            num_threads=lookup.NUM_THREADS,
        )

    def _put(self, row: Held) -> None:
        """Write a row that the device has no say in yet: its text has not begun to run."""
        running = row.is_running
        pending = row.entry.prompt[-1] if running else 0
        self._write(
            row.slot.index,
            generation=row.slot.generation,
            limit=row.entry.limit,
            active=running,
            length=row.most,
            pending=pending,
        )

    def _vacate(self, index: int) -> None:
        self._write(index, generation=0, limit=0, active=False, length=1, pending=0)

    def _write(
        self, index: int, *, generation: int, limit: int, active: bool, length: int, pending: int
    ) -> None:
        values = {
            "generation": generation,
            "limit": limit,
            "active": active,
            "length": length,
            "kind": 0,
            "num_draft": 0,
            "verify_tokens": [pending, *[0] * (self._width - 1)],
            "outcome": unjudged(self._width - 1),
        }
        self._work.put(self._rows.segments(index, values))
