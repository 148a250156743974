"""Putting bytes in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def put(base: Bytes, offsets: Sequence[int], ends: Sequence[int], data: Bytes) -> Bytes:
    """``base`` with each segment of ``data`` at its offset, a new array."""
    after = base.copy()
    start = 0
    for offset, end in zip(offsets, ends, strict=True):
        after[offset : offset + end - start] = data[start:end]
        start = end
    return after
