"""What target and draft of a resident pair say to each other, in device memory.

    message    from, to           bytes a row and round   what
    ---------  -----------------  ----------------------  ------------------------------
    verdict    target -> draft    16                      accepted count and bonus token
    proposal   draft -> target    8 (K + 4)               lease, kind, m, t*, x1 .. xm
    reading    target -> host     8 (K + 8)               the outcome, its status
    report     draft -> host      8 (K + 8)               the same with hit and rank

The first two cross the link between two GPUs: 80 bytes a row and round with K = 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from engines.tensors import DType
from plugins.lookup.reference import RANK, WAS_PREPARED
from runtime.device.api import Buffer, Device
from runtime.kv.slots import SlotRef
from runtime.resident.links import Link
from runtime.resident.readings import Flight, OnRead, Readings
from runtime.resident.reports import Reports, Rows
from runtime.resident.slabs import Slab, host_readable
from runtime.workers import mailbox as mail

_NUM_KEPT = 4


class Exchange(Readings):
    """The mailbox of a pair whose draft is resident too, and of a target alone."""

    def __init__(
        self,
        target_device: Device,
        draft_device: Device | None,
        num_rows: int,
        num_draft: int,
        *,
        vocab_size: int,
        logits: DType = DType.FLOAT32,
    ) -> None:
        """``vocab_size`` and ``logits`` are the size and type of the target's rows of logits."""
        super().__init__(target_device, num_rows, num_draft, vocab_size=vocab_size, logits=logits)
        here, there = target_device, draft_device or target_device
        verdict = {"accepted": ("int64", (num_rows,)), "bonus": ("int64", (num_rows,))}
        proposal = {
            "generation": ("int64", (num_rows,)),
            "kind": ("int64", (num_rows,)),
            "num_draft": ("int64", (num_rows,)),
            "verify_tokens": ("int64", (num_rows, self.max_draft + 1)),
        }
        self.verdict = Slab(here, "verdict", verdict)
        self.verdict_in = Slab(there, "verdict at the draft", verdict)
        self.proposal = Slab(there, "proposal", proposal)
        self._proposal_in = Slab(here, "proposal at the target", proposal)
        self._verdicts = Link(self.verdict.buffer, here, self.verdict_in.buffer, there)
        self._proposals = Link(self.proposal.buffer, there, self._proposal_in.buffer, here)
        self.draft_figures: Buffer = host_readable(
            there, "draft figures", (mail.NUM_DRAFT_FIGURES,), "float64"
        )
        self.figures: Buffer = host_readable(here, "figures", (mail.NUM_FIGURES,), "float64")
        self.readers: list[Callable[[int, Rows], None]] = []
        """Those at the draft's side whom the readings of rounds with a verdict concern; told its
        number, too."""
        self.reports: Reports | None = None
        self._collecting = Lock()
        self._num_sent = 0
        self._moves: deque[tuple[SlotRef, SlotRef]] = deque(maxlen=_NUM_KEPT * num_rows)
        self._known: deque[tuple[int, Rows]] = deque(maxlen=_NUM_KEPT)
        self._unlearnt: SimpleQueue[tuple[int, Rows]] = SimpleQueue()

    @property
    def proposals(self) -> Buffer:
        """What the draft writes and the target reads."""
        return self._proposal_in.buffer

    @property
    def outcomes(self) -> Buffer:
        """What the target writes and the draft reads."""
        return self.verdict_in.buffer

    def begin(
        self, place: int, num_tokens: int, on_read: OnRead, *, takes: bool, sends: bool
    ) -> None:
        """Work of the target: a round is queued whose reading will be at ``place``."""
        del takes
        self._num_sent += sends
        number = self._num_sent if sends else None
        told = () if number is None else tuple(partial(each, number) for each in self.readers)
        self.flights[place] = Flight(num_tokens, number, (on_read, *told))

    def receive_proposal(self) -> dict[str, Any]:
        """Work of the target: the message, as ``plugins.take`` has it."""
        self._proposals.receive()
        message = self._proposal_in
        return {
            "sent_generation": message["generation"],
            "sent_kind": message["kind"],
            "sent_num_draft": message["num_draft"],
            "sent_tokens": message["verify_tokens"] + 8,
            "stride": 1,
            "tokens_stride": self.max_draft + 1,
        }

    def send_verdict(self, outcome: int) -> None:  # noqa: ARG002 - for a draft on the host
        """Work of the target, behind its verdict; ``outcome`` is the address of the outcomes."""
        self._verdicts.send()

    def receive_verdict(self) -> None:
        """Work of the draft."""
        self._verdicts.receive()

    def send_proposal(self) -> None:
        """Work of the draft, behind its proposal."""
        self._proposals.send()

    def note_move(self, source: SlotRef, destination: SlotRef) -> None:
        """Work of the draft: what is known of a text goes with it."""
        self._moves.append((source, destination))

    def unlearnt(self) -> list[tuple[int, Rows]]:
        """Work of the draft: the numbered reports that have arrived since the last call."""
        self._collect()
        found = []
        while True:
            try:
                found.append(self._unlearnt.get_nowait())
            except Empty:
                return found

    def _collect(self) -> None:
        """From either thread: hand reports that have arrived to the statistics and the readings."""
        if self.reports is None:
            return
        with self._collecting:
            for report in self.reports.poll():
                self._known.append(report)
                self._unlearnt.put(report)

    def _ranks(self, flight: Flight) -> Mapping[SlotRef, int]:
        self._collect()
        # The draft's thread adds to them meanwhile.
        known_now = tuple(self._known)
        before = next((rows for known, rows in known_now if known + 1 == flight.number), None)
        ranks = {
            SlotRef(index, cells[mail.GENERATION]): 1 + cells[RANK]
            for index, cells in enumerate(before or ())
            if cells[WAS_PREPARED] >= 0
        }
        for source, destination in tuple(self._moves):
            if source in ranks:
                ranks.setdefault(destination, ranks[source])
        return ranks
