"""What the host reads of a resident pair's rounds: outcomes, times, log-probabilities.

Work copies them to page-locked buffers, two rounds side by side; the host reads them behind the
round's event. To the scheduler it is what ``runtime.workers.mailbox.Mailbox.read`` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from engines.errors import BackendError
from engines.tensors import DType
from plugins.lookup.reference import NUM_EXTRA, STATUS
from runtime.device.api import Buffer, Device
from runtime.device.cuda import CudaDevice
from runtime.kv.slots import SlotRef
from runtime.resident.slabs import host_readable
from runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from runtime.workers import mailbox as mail
from runtime.workers.mailbox import EMITTED, NUM_READINGS, Kind, Reading

OnRead = Callable[[Sequence[Sequence[int]]], None]
"""Told of a round's outcomes, by slot."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A row that asks for log-probabilities of its tokens and of the ``num_top`` likeliest."""

    row: int
    num_top: int


@dataclass(slots=True)
class Flight:
    """What is known of a round when it is queued.

    num_tokens  T of its verification
    number      of the verdict that it sends to the draft; None where the draft rests
    on_read     those whom its reading concerns
    ranks       1 + the rank of the last bonus token of each text that is known to have one
    scored      rows that ask for log-probabilities
    """

    num_tokens: int = 0
    number: int | None = None
    on_read: Sequence[OnRead] = ()
    ranks: Mapping[SlotRef, int] = field(default_factory=dict)
    scored: list[Scored] = field(default_factory=list)


class Readings:
    """The readings of two rounds, taken in turn."""

    def __init__(
        self, device: Device, num_rows: int, num_draft: int, *, vocab_size: int, logits: DType
    ) -> None:
        """``device`` is the target's, ``vocab_size`` and ``logits`` the size and type of its rows
        of logits. Raises DeviceError where there is too little memory."""
        self.num_rows = num_rows
        self.num_draft = num_draft
        self.max_draft = max(1, num_draft)
        self.rank_at = EMITTED + self.max_draft + 1
        self.logits_type = logits
        self.vocab_size = vocab_size
        self._is_gpu = isinstance(device, CudaDevice)
        self.readings: tuple[tuple[Buffer, Buffer], ...] = tuple(
            (
                host_readable(
                    device, f"reading {i}", (num_rows, self.rank_at + NUM_EXTRA), "int64"
                ),
                host_readable(device, f"figures of reading {i}", (mail.NUM_FIGURES,), "float64"),
            )
            for i in range(NUM_READINGS)
        )
        row_bytes = (self.max_draft + 1) * vocab_size * logits.itemsize
        self.scored_logits: tuple[Buffer, ...] = tuple(
            host_readable(device, f"logits of reading {i}", (num_rows, row_bytes), "uint8")
            for i in range(NUM_READINGS)
        )
        self.flights = [Flight() for _ in range(NUM_READINGS)]
        self._decided_at = self._verify_s = 0.0

    def read(self, place: int) -> Reading:
        """The reading of a round. The host's, once the round's event is reached.

        Raises BackendError for a text whose logits were no law: the target is damaged.
        """
        flight = self.flights[place]
        rows: list[list[int]] = self.readings[place][0].array.tolist()
        if any(cells[mail.KIND] != Kind.SKIP and cells[STATUS] for cells in rows):
            raise BackendError(
                "the target gives logits that are no law (NaN, +inf or nothing above -inf), so its "
                "weights are damaged; check the bundle: python -m export inspect BUNDLE"
            )
        for on_read in flight.on_read:
            on_read(rows)
        logprobs: list[list[TokenLogprobs]] = [[] for _ in rows]
        for scored in flight.scored:
            logprobs[scored.row] = self._score(place, scored, rows[scored.row])
        ranks = self._ranks(flight)
        for index, cells in enumerate(rows):
            cells[self.rank_at :] = [ranks.get(SlotRef(index, cells[mail.GENERATION]), 0)]
        return Reading(rows, self._figures(place), logprobs)

    def _ranks(self, flight: Flight) -> Mapping[SlotRef, int]:
        """1 + the rank that the bonus token had of each text's outcome before, if it had one."""
        return flight.ranks

    def _score(self, place: int, scored: Scored, cells: list[int]) -> list[TokenLogprobs]:
        if cells[mail.KIND] == Kind.SKIP:
            return []
        shape = (self.flights[place].num_tokens, self.vocab_size)
        logits = as_float32(self.scored_logits[place].array[scored.row], self.logits_type, shape)
        tokens = cells[EMITTED : EMITTED + cells[mail.ACCEPTED] + 1]
        return [
            token_logprobs(row, token, scored.num_top)
            for row, token in zip(logits, tokens, strict=False)
        ]

    def _figures(self, place: int) -> list[float]:
        """The round's own on the host; on a GPU, whose times nobody takes, as the host saw it."""
        figures: list[float] = self.readings[place][1].array.tolist()
        if self._is_gpu:
            now = perf_counter()
            begun = max(figures[mail.STARTED_AT], self._decided_at)
            self._verify_s += now - begun
            figures[mail.STARTED_AT], figures[mail.DECIDED_AT] = begun, now
            figures[mail.VERIFY_S], self._decided_at = self._verify_s, now
        return figures


def as_float32(raw: np.ndarray, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Logits from their bytes, of which there may be more than the shape takes."""
    size = int(np.prod(shape))
    if dtype is DType.BFLOAT16:
        bits = raw[: 2 * size].view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(shape)
    kind = dtype.numpy
    return raw[: size * kind.itemsize].view(kind).astype(np.float32).reshape(shape)
