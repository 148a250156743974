"""Arrays in device memory: several in one buffer, and small ones that the host can read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from runtime.device.api import Buffer, Device
from runtime.device.cuda import CudaDevice

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> (numpy type, shape)."""

_ALIGNMENT = 64


class Slab:
    """Arrays side by side in one buffer, which is zeroed at first; one copy moves them all.

    An array's first axis counts the slots where something is done to the row of one slot.
    """

    def __init__(self, device: Device, name: str, shapes: Shapes) -> None:
        """Raises DeviceError where the device has too little memory."""
        self.shapes = dict(shapes)
        self._offsets: dict[str, int] = {}
        size = 0
        for field in shapes:
            self._offsets[field] = size
            size += -(-self.nbytes(field) // _ALIGNMENT) * _ALIGNMENT
        self.buffer: Buffer = device.allocate(name, (max(size, 1),), np.uint8)

    def __getitem__(self, field: str) -> int:
        """The address of an array."""
        return self.buffer.address + self._offsets[field]

    @property
    def addresses(self) -> dict[str, int]:
        """Of all arrays, by name: fields of a kernel."""
        return {field: self[field] for field in self.shapes}

    def fields(self, *names: str) -> dict[str, int]:
        """The addresses of some."""
        return {name: self[name] for name in names}

    def nbytes(self, field: str) -> int:
        dtype, shape = self.shapes[field]
        return math.prod(shape) * np.dtype(dtype).itemsize

    def row_bytes(self, field: str) -> int:
        return self.nbytes(field) // self.shapes[field][1][0]

    def row(self, field: str, index: int) -> int:
        """The address of a slot's row."""
        return self[field] + index * self.row_bytes(field)

    def segments(self, index: int, values: Mapping[str, object]) -> list[tuple[int, np.ndarray]]:
        """What ``kernels.Work.put`` takes to write values into the rows of one slot."""
        return [
            (self.row(field, index), np.asarray(value, self.shapes[field][0]).reshape(-1))
            for field, value in values.items()
        ]


def host_readable(device: Device, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
    """A zeroed buffer with an ``array``, which work of the device can copy to and from."""
    if isinstance(device, CudaDevice):
        return device.allocate_pinned(name, shape, dtype)
    return device.allocate(name, shape, dtype)
