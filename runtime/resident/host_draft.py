"""A draft on the host beside a target on a GPU: the host's worker, over page-locked messages.

Its stream is one of the target's GPU: a thread whose CUDA stream carries no work of its own, only
the events. So the rounds are launched as for any pair; the thread waits where it must look.

    message    from, to         bytes a row and round   how
    ---------  ---------------  ----------------------  -----------------------------------------
    outcome    target -> draft  8 (K + 5)               the target copies it to page-locked memory
    proposal   draft -> target  8 (K + 4)               and the proposal from there

Lookups work, in front of the model and after a miss; ``jit`` does not: a row that sits a round out
is unknown on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, cast

import numpy.typing as npt

from engines.tensors import DType
from runtime.backends.api import KeepingSession
from runtime.device.api import Buffer, Device
from runtime.device.copies import copies_of
from runtime.device.cuda import CudaDevice
from runtime.device.cuda_lane import current_stream
from runtime.kv.slots import SlotRef
from runtime.resident.readings import Flight, OnRead, Readings
from runtime.resident.slabs import Slab, host_readable
from runtime.sampling.api import Rule
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox


class HostDraftExchange(Readings):
    """The target's mailbox; ``host`` is the draft's, page-locked."""

    def __init__(
        self,
        device: Device,
        num_rows: int,
        num_draft: int,
        *,
        vocab_size: int,
        logits: DType = DType.FLOAT32,
    ) -> None:
        """``vocab_size`` and ``logits`` are the size and type of the target's rows of logits."""
        super().__init__(device, num_rows, num_draft, vocab_size=vocab_size, logits=logits)
        self.host = Mailbox(cast(Device, _HostReadable(device)), num_rows, num_draft)
        self.verdict = Slab(
            device, "verdict", {"accepted": ("int64", (num_rows,)), "bonus": ("int64", (num_rows,))}
        )
        self._columns = self.host.proposals.shape[1]
        self._sent = Slab(device, "proposal", {"sent": ("int64", (num_rows, self._columns))})
        self._copies = copies_of(device)
        self.proposals: Buffer = self.host.proposals
        self.outcomes: Buffer = self.host.outcomes
        self.draft_figures: Buffer = self.host.draft_figures
        self.figures: Buffer = self.host.figures

    def begin(
        self, place: int, num_tokens: int, on_read: OnRead, *, takes: bool, sends: bool
    ) -> None:
        """Work of the target: a round is queued whose reading will be at ``place``."""
        del sends
        ranks = {}
        if takes:
            sent = self.host.proposals.array[:, [mail.GENERATION, -1]].tolist()
            ranks = {SlotRef(index, lease): rank for index, (lease, rank) in enumerate(sent)}
        self.flights[place] = Flight(num_tokens, on_read=(on_read,), ranks=ranks)

    def receive_proposal(self) -> dict[str, Any]:
        """Work of the target: the message, as ``plugins.take`` has it."""
        sent = self._sent["sent"]
        self._copies.copy(self.host.proposals.address, sent, self.host.proposals.nbytes)
        return {
            "sent_generation": sent + 8 * mail.GENERATION,
            "sent_kind": sent + 8 * mail.KIND,
            "sent_num_draft": sent + 8 * mail.COUNT,
            "sent_tokens": sent + 8 * mail.PROPOSED,
            "stride": self._columns,
            "tokens_stride": self._columns,
        }

    def send_verdict(self, outcome: int) -> None:
        """Work of the target, behind its verdict; ``outcome`` is the address of the outcomes."""
        columns, kept = self.readings[0][0].shape[1], self.host.outcomes.shape[1]
        self._copies.copy_2d(
            outcome,
            self.host.outcomes.address,
            width=8 * kept,
            height=self.num_rows,
            source_pitch=8 * columns,
            target_pitch=8 * kept,
        )


class HostDraft(DraftWorker):
    """``runtime.workers.draft.DraftWorker`` whose outcomes come from a GPU."""

    def __init__(
        self,
        session: KeepingSession,
        rule: Rule,
        mailbox: HostDraftExchange,
        *,
        device: Device,
        num_draft: int,
        num_branches: int,
        statistics: OutcomeStatistics,
        fallback: Fallback = Fallback.ZERO,
        drafter: Drafter = Drafter.MODEL,
    ) -> None:
        """``device`` is the target's; the rest as for DraftWorker."""
        super().__init__(
            session,
            rule,
            mailbox.host,
            num_draft=num_draft,
            num_branches=num_branches,
            statistics=statistics,
            fallback=fallback,
            drafter=drafter,
        )
        self._waits = isinstance(device, CudaDevice)

    def follow(self, plan: RoundPlan | None = None) -> None:
        self._await_outcomes()
        super().follow(plan)

    def adopt(self, plan: RoundPlan | None = None) -> None:
        self._await_outcomes()
        super().adopt(plan)

    def _await_outcomes(self) -> None:
        """Let the GPU come to the event that this stream waits for: then they have arrived."""
        if self._waits:
            current_stream().sync()
        self.mailbox.figures.array[mail.DECIDED_AT] = perf_counter()


class _HostReadable:
    """Allocates as a device does, where host and GPU both have access."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def allocate(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
        return host_readable(self._device, name, shape, dtype)
