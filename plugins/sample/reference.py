"""ssd::Sample in numpy: the meaning that every other form is tested against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

IntArray = npt.NDArray[np.int64]


def sample(logits: npt.NDArray[np.float32], ids_map: IntArray) -> tuple[IntArray]:
    """The likeliest token of every row, as a target id.

    Args:
        logits: float32 [B, R, V], V the draft's own vocabulary. No NaN.
        ids_map: int64 [V], the target id of every draft id; 0, 1, 2, ... where they are the same.

    Returns:
        sample int64 [B, R]: ids_map[argmax(logits)]. Of equal logits the lowest draft id.

    Raises UsageError when the map does not have one entry a logit.
    """
    if ids_map.shape != logits.shape[2:]:
        raise UsageError(
            f"logits {logits.shape} need ids_map {logits.shape[2:]}, found {ids_map.shape}"
        )
    return (ids_map[logits.argmax(axis=-1)],)
