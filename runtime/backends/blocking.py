"""A device session for callers that compute on the host: arrays in, a wait, arrays out.

Loading probes an engine with it, `score` scores texts, and step times are measured by it: all that
is written for host sessions. Nothing of it is on the path of a generation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engines.manifest import TARGET, EngineManifest
from engines.tensors import DType
from plugins.layer import DeviceTensor
from plugins.verify.reference import verify
from runtime.backends.api import CallShape, DeviceSession, DeviceStep
from runtime.backends.device_blocks import Allocator, DeviceBlocks
from runtime.device.api import Buffer, Device
from runtime.device.copies import copies_of
from runtime.device.cuda import CudaDevice, current_stream

INPUTS = ("tokens", "positions", "write_at", "mask", "logit_rows", "num_draft")


class BlockingSession:
    """``session`` as ``runtime.backends.api.Session``; it stays the caller's.

    The constructor allocates, page-locked on a GPU, so it is for the host thread; all else is for
    work on the session's stream. One copy of outputs is kept.
    """

    def __init__(self, session: DeviceSession, device: Device, *, num_slots: int) -> None:
        self.manifest: EngineManifest = session.manifest
        self.vocab_map: np.ndarray | None = session.vocab_map
        self._session = session
        self._blocks = DeviceBlocks(_host_memory(device), session.manifest, num_slots, 1)
        self._copies = copies_of(device)
        self._is_on_gpu = isinstance(device, CudaDevice)

    @property
    def kv_buffer(self) -> Buffer:
        return self._session.kv_buffer

    def bind_rows(self, needed: int) -> None:
        self._session.bind_rows(needed)

    def reset_rows(self) -> None:
        self._session.reset_rows()

    def prepare(self, shape: CallShape) -> BlockingStep:
        step = self._session.prepare(shape)
        num_attended = step.mask.shape[-1]
        arrays = {
            name: _array(tensor)
            for name, tensor in self._blocks.tensors(shape, num_attended).items()
        }
        num_slots, num_logits = shape.num_slots, shape.num_logits
        logits = arrays["logits"]
        return BlockingStep(
            shape=shape,
            tokens=arrays["tokens"],
            positions=arrays["positions"],
            write_at=arrays["write_at"],
            mask=arrays["mask"][:, 0],
            logit_rows=arrays["logit_rows"],
            num_draft=arrays["num_draft"],
            logits=logits if logits.dtype == np.float32 else np.zeros(logits.shape, np.float32),
            accepted=np.zeros(num_slots, np.int64),
            next=np.zeros(num_slots, np.int64),
            sample=np.zeros((num_slots, num_logits), np.int64),
            _step=step,
            _session=self,
            _arrays=arrays,
        )

    def copy_rows(self, slot: int, source: slice, destination: int) -> None:
        """Row by row: the heads of a slot lie apart, and so may the rows."""
        caches = self._session.caches
        for cache in caches:
            _, num_heads, num_rows, width = cache.shape
            row_bytes = width * cache.dtype.itemsize
            base = cache.address + slot * num_heads * num_rows * row_bytes
            for place, row in enumerate(range(*source.indices(num_rows)), start=destination):
                if row != place:
                    self._copies.copy_2d(
                        base + row * row_bytes,
                        base + place * row_bytes,
                        width=row_bytes,
                        height=num_heads,
                        source_pitch=num_rows * row_bytes,
                        target_pitch=num_rows * row_bytes,
                    )

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        self._session.copy_slot(source, destination, rows)

    def close(self) -> None:
        """The session is the caller's, so there is nothing to close."""

    def run(self, step: BlockingStep) -> None:
        """Copy the inputs over, run, copy the logits back, wait, and judge them on the host."""
        device = step._step
        logits = step._arrays["logits"]
        for name in INPUTS:
            tensor: DeviceTensor = getattr(device, name)
            array = step._arrays[name]
            self._copies.copy(array.ctypes.data, tensor.address, array.nbytes)
        device.enqueue()
        self._copies.copy(device.logits.address, logits.ctypes.data, logits.nbytes)
        if self._is_on_gpu:
            current_stream().sync()
        if step.logits is not logits:
            step.logits[:] = _as_float32(logits, device.logits.dtype)
        if self.manifest.role == TARGET:
            drafted = np.take_along_axis(step.tokens, step.logit_rows[:, 1:], axis=1)
            step.accepted[:], step.next[:] = verify(step.logits, drafted, step.num_draft)
        else:
            best = step.logits.argmax(axis=2)
            step.sample[:] = best if self.vocab_map is None else self.vocab_map[best]


@dataclass(slots=True)
class BlockingStep:
    """See ``runtime.backends.api.Step``."""

    shape: CallShape
    tokens: np.ndarray
    positions: np.ndarray
    write_at: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray
    num_draft: np.ndarray
    logits: np.ndarray
    accepted: np.ndarray
    next: np.ndarray
    sample: np.ndarray
    _step: DeviceStep
    _session: BlockingSession
    _arrays: dict[str, np.ndarray] = field(repr=False)

    def run(self) -> None:
        self._session.run(self)


class _Pinned:
    """A GPU's page-locked memory, for what allocates on a device."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def allocate(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
        return self._device.allocate_pinned(f"{name} (host)", shape, dtype)


def _host_memory(device: Device) -> Allocator:
    return _Pinned(device) if isinstance(device, CudaDevice) else device


def _array(tensor: DeviceTensor) -> np.ndarray:
    """The host's memory at an address, as an array; the blocks keep it alive. bfloat16, which numpy
    does not know, as its bits."""
    is_bits = tensor.dtype is DType.BFLOAT16
    kind = np.dtype(np.uint16) if is_bits else tensor.dtype.numpy
    size = int(np.prod(tensor.shape)) * kind.itemsize
    raw = (ctypes.c_uint8 * size).from_address(tensor.address)
    return np.ctypeslib.as_array(raw).view(kind).reshape(tensor.shape)


def _as_float32(logits: np.ndarray, dtype: DType) -> np.ndarray:
    """Logits of half precision, or their bits, as ``Step`` promises them."""
    if dtype is DType.BFLOAT16:
        return (logits.astype(np.uint32) << 16).view(np.float32)
    return logits.astype(np.float32)
