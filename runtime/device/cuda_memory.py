"""Memory of one GPU: its pool, page-locked host memory, and when it is safe to free them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engines.errors import DeviceError
from runtime.device.api import BufferRange
from runtime.device.cuda_api import CudaCore, Gpu, GpuBuffer
from runtime.device.cuda_errors import cuda_call, reason
from runtime.device.cuda_lane import CudaLane, current_stream
from runtime.device.lane import Launch

T = TypeVar("T")

_capture_lock = Lock()
"""Held while a stream captures, of any GPU: freeing would break the capture."""


class CudaHeap:
    """Allocates and frees for one GPU, on a lane of its own.

    Freeing waits until the GPU has finished all that was enqueued before: work that is still
    running holds no reference to its buffers. The thread that drops the last reference does not
    wait for that, the lane's thread does.
    """

    def __init__(self, core: CudaCore, ordinal: int, device: str, lane: CudaLane) -> None:
        self.capture_lock = _capture_lock
        self._core = core
        self._ordinal = ordinal
        self._device = device
        self._lane = lane
        self._num_live = 0  # by the lane's thread only
        self._is_closed = False
        with cuda_call(f"creating the memory pool of {device}"):
            self._pool = lane.call(
                lambda: core.DeviceMemoryResource(ordinal, core.DeviceMemoryResourceOptions())
            )
            self._pinned = lane.call(core.LegacyPinnedMemoryResource)

    def allocate(
        self, name: str, shape: Sequence[int], dtype: npt.DTypeLike, *, is_pinned: bool
    ) -> CudaBuffer:
        """A zeroed buffer in the GPU's memory, or page-locked in the host's.

        Raises DeviceError for a shape or dtype that cannot be held, and for too little memory.
        """
        sizes, kind = _checked_layout(name, shape, dtype)
        nbytes = math.prod(sizes) * kind.itemsize
        memory = self._lane.call(partial(self._allocate, name, nbytes, is_pinned))
        return CudaBuffer(name, sizes, kind, memory)

    def grant(self, peer: int) -> None:
        """Let the GPU with the ordinal `peer` read and write this GPU's pool."""
        with cuda_call(f"giving cuda:{peer} access to the memory of {self._device}"):
            self._lane.call(lambda: self._pool.peer_accessible_by.add(peer))

    def can_access(self, peer: int) -> bool:
        """Whether this GPU can read and write the memory of the GPU `peer` over their link."""
        with cuda_call(f"asking whether {self._device} can access cuda:{peer}"):
            return self._lane.call(lambda: self._core.Device(self._ordinal).can_access_peer(peer))

    def ask(self, question: Callable[[Gpu], T]) -> T:
        """What cuda.core says of this GPU."""
        with cuda_call(f"asking about {self._device}"):
            return self._lane.call(lambda: question(self._core.Device(self._ordinal)))

    def retire(self, close: Callable[[], None]) -> None:
        """Call `close` once the GPU has done all that is enqueued by now. From any thread."""
        self._lane.put(Launch(partial(self._close_when_idle, close), "free"))

    def close(self, timeout_s: float) -> None:
        """End the lane; if buffers are alive that it still has to free, after the last of them.

        Raises DeviceError for a GPU that hangs: the lane waits for it to free what was let go of.
        """
        try:
            is_unused = self._lane.call(self._stop_allocating, timeout_s)
        except DeviceError:
            is_unused = True  # a lost context frees nothing any more, and a GPU that hangs neither
        if is_unused:
            self._lane.close()

    def _allocate(self, name: str, nbytes: int, is_pinned: bool) -> CudaMemory:
        stream = current_stream()
        place = "page-locked host memory" if is_pinned else f"memory of {self._device}"
        try:
            raw = (self._pinned if is_pinned else self._pool).allocate(
                max(nbytes, 1), stream=stream
            )
        except Exception as error:
            raise DeviceError(
                f"no memory for buffer {name!r}: {nbytes / 2**20:.0f} MiB of {place} "
                f"({reason(error)}); use smaller limits (max-len, max-batch) or a GPU with more "
                "free memory"
            ) from error
        memory = CudaMemory(raw, nbytes, self._device, is_pinned)
        self._num_live += 1
        # At exit the process takes its memory with it.
        weakref.finalize(memory, self.retire, partial(self._free, raw)).atexit = False
        with cuda_call(f"zeroing buffer {name!r} in {place}"):
            if is_pinned:
                np.asarray(memory).fill(0)
            else:
                raw.fill(0, stream=stream)
                stream.sync()
        return memory

    def _close_when_idle(self, close: Callable[[], None]) -> None:
        with self.capture_lock, cuda_call(f"freeing memory of {self._device}"):
            self._core.Device(self._ordinal).sync()
            close()

    def _free(self, raw: GpuBuffer) -> None:
        raw.close(current_stream())
        self._num_live -= 1
        if self._is_closed and self._num_live == 0:
            # From another thread: closing a lane waits for its thread, which is this one.
            Thread(target=self._lane.close, name=f"close {self._device}", daemon=True).start()

    def _stop_allocating(self) -> bool:
        self._is_closed = True
        return self._num_live == 0


class CudaMemory:
    """One allocation, freed with the last buffer and the last array over it."""

    def __init__(self, raw: GpuBuffer, nbytes: int, device: str, is_pinned: bool) -> None:
        self.raw = raw
        self.address = int(raw.handle)
        self.nbytes = nbytes
        self.device = device
        self.is_pinned = is_pinned

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }


class CudaBuffer:
    """An array in a GPU's memory, or page-locked in the host's. See `api.Buffer`."""

    __slots__ = ("__weakref__", "_array", "address", "dtype", "memory", "name", "nbytes", "shape")

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, memory: CudaMemory
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.nbytes = memory.nbytes
        self.address = memory.address
        self.memory = memory
        self._array = np.ndarray(shape, dtype, np.asarray(memory)) if memory.is_pinned else None

    @property
    def array(self) -> np.ndarray:
        if self._array is None:
            raise DeviceError(
                f"buffer {self.name!r} lies in the memory of {self.memory.device}, where the host "
                "cannot see it; copy it to a buffer of allocate_pinned"
            )
        return self._array

    def rows(self, start: int, stop: int) -> BufferRange:
        if not 0 <= start <= stop <= self.shape[0]:
            raise DeviceError(
                f"buffer {self.name!r} has rows 0 to {self.shape[0]}, not {start} to {stop}"
            )
        return BufferRange(self, start, stop)

    def __repr__(self) -> str:
        place = "pinned" if self.memory.is_pinned else self.memory.device
        return f"CudaBuffer({self.name!r}, {self.shape}, {self.dtype}, {place})"


def copy(source: CudaBuffer, target: CudaBuffer) -> None:
    """Enqueue a copy of the whole buffer; to be called in work."""
    with cuda_call(f"copying {source.name!r} to {target.name!r}"):
        source.memory.raw.copy_to(target.memory.raw, stream=current_stream())


def require_same_size(source: CudaBuffer, target: CudaBuffer) -> None:
    """Raises DeviceError unless one can be copied to the other."""
    if source.nbytes != target.nbytes:
        raise DeviceError(
            f"buffer {source.name!r} has {source.nbytes} bytes and {target.name!r} has "
            f"{target.nbytes}; only buffers of one size are copied"
        )


def _checked_layout(
    name: str, shape: Sequence[int], dtype: npt.DTypeLike
) -> tuple[tuple[int, ...], np.dtype]:
    sizes, kind = tuple(int(size) for size in shape), np.dtype(dtype)
    if not sizes or min(sizes) < 0:
        raise DeviceError(
            f"buffer {name!r} has shape {sizes}; expected at least one axis and no negative size"
        )
    if kind.hasobject:
        raise DeviceError(
            f"buffer {name!r} has dtype {kind}, which holds Python objects; use a plain number type"
        )
    return sizes, kind
