"""A ring of small page-locked buffers: how a few integers a round come back to the host.

The stream writes slot after slot and the host reads them in the same order, a round or more later;
neither waits for the other. One stream produces, one host thread consumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engines.errors import DeviceError
from runtime.device.cuda_graph import Enqueue
from runtime.device.cuda_memory import CudaBuffer, copy, require_same_size

if TYPE_CHECKING:
    from runtime.device.cuda import CudaStream


class RingIndex:
    """Which slot is next: written and read in turn, never more written than there are slots."""

    def __init__(self, num_slots: int) -> None:
        """Raises DeviceError for less than one slot."""
        if num_slots < 1:
            raise DeviceError(f"a ring of {num_slots} slots holds nothing; give it at least one")
        self.num_slots = num_slots
        self._num_claimed = 0
        self._num_released = 0

    @property
    def num_waiting(self) -> int:
        """Slots claimed and not yet released."""
        return self._num_claimed - self._num_released

    @property
    def oldest(self) -> int:
        """The slot to read next. Raises DeviceError when none is claimed."""
        if self.num_waiting == 0:
            raise DeviceError("nothing waits in the ring; push before reading")
        return self._num_released % self.num_slots

    def claim(self) -> int:
        """The slot to write next. Raises DeviceError when all are claimed."""
        if self.num_waiting == self.num_slots:
            raise DeviceError(
                f"all {self.num_slots} slots of the ring wait to be read; read one, or make the "
                "ring longer than the host may lag behind"
            )
        slot = self._num_claimed % self.num_slots
        self._num_claimed += 1
        return slot

    def release(self) -> int:
        """Give back the oldest claimed slot. Raises DeviceError when none is claimed."""
        slot = self.oldest
        self._num_released += 1
        return slot


class PinnedRing:
    """Rows of integers on their way from `stream` to the host."""

    def __init__(
        self,
        stream: CudaStream,
        name: str,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        *,
        num_slots: int,
    ) -> None:
        """`shape` and `dtype` of one slot. Allocates; raises DeviceError like `allocate`."""
        self._index = RingIndex(num_slots)
        self._device = stream.device
        self._stream = stream
        self._slots = [
            stream.device.allocate_pinned(f"{name} {slot}", shape, dtype)
            for slot in range(num_slots)
        ]
        self._events = [stream.device.create_event(slot.name) for slot in self._slots]

    @property
    def num_waiting(self) -> int:
        """Rows pushed and not yet popped, whether they have arrived or not."""
        return self._index.num_waiting

    def push(self, source: CudaBuffer) -> None:
        """Append a copy of `source`, as it is when the stream comes to it.

        Raises DeviceError when the ring is full, when sizes differ, and during a capture: which
        slot is next changes with each replay, so push after launching the graph.
        """
        self._device.refuse_in_capture("push")
        require_same_size(source, self._slots[0])
        slot = self._index.claim()
        target = self._slots[slot]
        self._stream.launch(
            Enqueue(partial(copy, source, target)),
            reads=[source],
            writes=[target],
            label=f"push {target.name}",
        )
        self._stream.record(self._events[slot])

    def poll(self) -> np.ndarray | None:
        """The oldest row as a copy, or None where none has arrived. Never blocks.

        Raises what the stream failed with.
        """
        if self.num_waiting == 0 or not self._events[self._index.oldest].is_done:
            return None
        return self.pop()

    def pop(self) -> np.ndarray:
        """The oldest row as a copy; blocks until it has arrived.

        Raises DeviceError when nothing was pushed, and what the stream failed with.
        """
        slot = self._index.oldest
        self._events[slot].sync()
        source = self._slots[slot]
        self._device.host_access(reads=[source], label=f"pop {source.name}")
        row = source.array.copy()
        self._index.release()
        return row
