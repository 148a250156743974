"""Buffers in host memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engines.errors import DeviceError
from runtime.device.api import BufferRange

# A cache line, and the widest vector load of current CPUs.
_ALIGNMENT = 64


class HostBuffer:
    """A numpy array with a name, zeroed and aligned to 64 bytes. See `api.Buffer`."""

    __slots__ = ("__weakref__", "address", "array", "dtype", "name", "nbytes", "shape")

    def __init__(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> None:
        """Allocate. Raises DeviceError for a bad shape or dtype, or when memory is short."""
        self.name = name
        self.shape = tuple(int(size) for size in shape)
        self.dtype = np.dtype(dtype)
        if not self.shape or min(self.shape) < 0:
            raise DeviceError(
                f"buffer {name!r} has shape {self.shape}; expected at least one axis "
                "and no negative size"
            )
        if self.dtype.hasobject:
            raise DeviceError(
                f"buffer {name!r} has dtype {self.dtype}, which holds Python objects; "
                "use a plain number type"
            )
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        try:
            memory = np.zeros(self.nbytes + _ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            raise DeviceError(
                f"no memory for buffer {name!r}: {self.nbytes / 2**20:.0f} MiB for shape "
                f"{self.shape}; use smaller limits (max-len, max-batch) or a larger machine"
            ) from error
        skip = -memory.ctypes.data % _ALIGNMENT
        self.array = np.ndarray(self.shape, self.dtype, memory, skip)
        self.address = int(self.array.ctypes.data)

    def rows(self, start: int, stop: int) -> BufferRange:
        if not 0 <= start <= stop <= self.shape[0]:
            raise DeviceError(
                f"buffer {self.name!r} has rows 0 to {self.shape[0]}, not {start} to {stop}"
            )
        return BufferRange(self, start, stop)

    def __repr__(self) -> str:
        return f"HostBuffer({self.name!r}, {self.shape}, {self.dtype})"
