"""What a worker asks of an engine: bind rows, prepare a call of some shape, run it, move rows.

A session owns its weights and its caches, which are allocated once. It has no locks: all calls
after loading happen in the order of one stream (``run`` inside work launched on that stream).

    session.bind_rows(n)      make at least n cache rows a slot available to the next calls
    step = session.prepare(shape)
    step.tokens[...] = ...    fill every input array (they are reused, so all of them, every time)
    step.run()                blocks until the outputs are filled
    step.logits, ...          valid until any step of the same ``copy`` runs

``DeviceSession`` is the same for engines whose inputs kernels fill in device memory
(``runtime.resident``): its steps have addresses in the place of arrays, and ``enqueue``, which
waits for nothing, in the place of ``run``. On a GPU its methods are called inside work of the
stream that owns it, so ``runtime.device.cuda.current_stream`` is where they enqueue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engines.manifest import EngineManifest
from plugins.layer import DeviceTensor
from runtime.device.api import Buffer


@dataclass(frozen=True, slots=True)
class CallShape:
    """Slots ``first_slot`` .. ``first_slot + num_slots - 1``, T tokens each, R rows of logits.

    ``copy`` tells apart calls of one shape whose outputs must be kept side by side.
    """

    first_slot: int
    num_slots: int
    num_tokens: int
    num_logits: int
    copy: int = 0


class Step(Protocol):
    """One prepared call; B, T, R, L as in ``engines.tensors``. The arrays belong to the step."""

    shape: CallShape
    tokens: np.ndarray  # int64 [B, T]
    positions: np.ndarray  # int64 [B, T]
    write_at: np.ndarray  # int64 [B]
    mask: np.ndarray  # bool [B, T, L]
    logit_rows: np.ndarray  # int64 [B, R]
    num_draft: np.ndarray  # int64 [B]; read by a target only
    logits: np.ndarray  # float32 [B, R, output vocabulary]
    accepted: np.ndarray  # int64 [B]; target: greedy verification
    next: np.ndarray  # int64 [B]; target: greedy token after the accepted ones
    sample: np.ndarray  # int64 [B, R]; draft: greedy choice in target ids

    def run(self) -> None:
        """Run the call. Raises BackendError; the caches are then zeroed."""


class Session(Protocol):
    """One loaded engine with its caches."""

    manifest: EngineManifest
    vocab_map: np.ndarray | None  # int64 [output vocabulary] target ids; None = identity

    @property
    def kv_buffer(self) -> Buffer:
        """The caches' memory, for ``reads`` and ``writes`` of launches."""

    def bind_rows(self, needed: int) -> None:
        """Make at least ``needed`` rows a slot available; their contents survive.

        Never shrinks and allocates nothing. Raises CapacityError beyond the built rows.
        """

    def reset_rows(self) -> None:
        """Go back to the smallest bucket; what the caches held is void."""

    def prepare(self, shape: CallShape) -> Step:
        """The step for ``shape`` at the rows bound now; made once, then reused."""

    def copy_rows(self, slot: int, source: slice, destination: int) -> None:
        """Copy the rows ``source`` of a slot to consecutive rows from ``destination`` on."""

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        """Copy the rows ``rows`` of one slot to the same rows of another."""

    def close(self) -> None:
        """Free the engine and its caches; idempotent."""


class KeepingSession(Session, Protocol):
    """A session on the host, whose slots may hold rows beyond the text that wrote them."""

    def shrink_rows(self, needed: int, kept: Sequence[int]) -> None:
        """Bind the smallest bucket of at least ``needed`` rows, if that is smaller. The first
        ``kept[i]`` rows of slot i survive, also where they are not bound: ``copy_slot`` and
        ``swap_slots`` reach them there, and ``bind_rows`` brings them back."""

    def swap_slots(self, first: int, second: int, rows: slice) -> None:
        """Let the rows ``rows`` of two slots change places."""


class DeviceStep(Protocol):
    """One prepared call whose tensors lie in the device's memory, each dense and at a fixed
    address as long as the step may be used: until the session binds other rows or is closed.

    Steps of one ``copy`` number may share inputs and outputs with each other, and share none with
    those of another: fill every input before each call.
    """

    shape: CallShape
    tokens: DeviceTensor  # int64 [B, T]
    positions: DeviceTensor  # int64 [B, T]
    write_at: DeviceTensor  # int64 [B]
    mask: DeviceTensor  # bool [B, 1, T, L], L rows are bound
    logit_rows: DeviceTensor  # int64 [B, R]
    num_draft: DeviceTensor  # int64 [B]; read by a target only, whose own verdict nobody reads
    logits: DeviceTensor  # float32, float16 or bfloat16 [B, R, output vocabulary]

    def enqueue(self) -> None:
        """Queue the call on the current stream and return; a host session runs it at once.

        It allocates nothing and waits for nothing. On a capturable session it may be called while
        the stream captures, once the step was enqueued before. Raises BackendError.
        """


class DeviceSession(Protocol):
    """One loaded engine with its caches, used without the host.

    Everything but the constructor and ``close`` is called inside work on one stream. Nothing here
    waits for the device.
    """

    manifest: EngineManifest
    vocab_map: np.ndarray | None  # on the host, as a Session's
    is_capturable: bool
    """Whether ``enqueue`` may be captured into a CUDA graph."""

    @property
    def kv_buffer(self) -> Buffer:
        """The caches' memory, for ``reads`` and ``writes`` of launches."""

    @property
    def num_rows(self) -> int:
        """Rows S of each slot that are bound now; also the L of every mask."""

    @property
    def caches(self) -> tuple[DeviceTensor, ...]:
        """Key and value of each layer in turn, [slots, Hkv, rows of a cache, D].

        The row stride may exceed ``num_rows`` where an engine's caches do not move as they grow.
        """

    def bind_rows(self, needed: int) -> None:
        """Make at least ``needed`` rows a slot available; their contents survive.

        Never shrinks and allocates no cache memory. Raises CapacityError beyond the built rows.
        """

    def reset_rows(self) -> None:
        """Go back to the smallest bucket; what the caches held is void, and zeroed if a failed
        call may have left something in them."""

    def prepare(self, shape: CallShape) -> DeviceStep:
        """The step for ``shape`` at the rows bound now; made once, then reused."""

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        """Queue a copy of the rows ``rows`` of one slot to the same rows of another."""

    def close(self) -> None:
        """Free the engine and its caches; idempotent."""
