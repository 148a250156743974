"""The vocabulary map of a draft that speaks a part of the target's vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError
from export.checkpoint.spec import ModelSpec

OFFSETS = "d2t"  # target id = draft id + d2t[draft id]
MASK = "t2d"  # true where a target id is in the draft's vocabulary


def target_ids(
    spec: ModelSpec,
    offsets: npt.NDArray[np.int64] | None,
    mask: npt.NDArray[np.int64] | None,
    where: str,
) -> npt.NDArray[np.int32] | None:
    """Target id of every draft id, int32 ``[draft_vocab]``; None for a whole vocabulary.

    ``offsets`` ``[draft_vocab]`` are differences, not ids: a file that holds ids instead is told
    apart by ids out of range or met twice. ``mask`` ``[vocab_size]``, where stored, must agree.
    Raises CheckpointError.
    """
    size = spec.draft_vocab_size
    if offsets is None:
        if size is not None and size < spec.vocab_size:
            raise CheckpointError(
                f"{where}: draft_vocab_size {size} is below vocab_size {spec.vocab_size}, "
                f"but there is no tensor {OFFSETS} that maps draft ids to target ids"
            )
        return None
    if size is None:
        raise CheckpointError(
            f"{where}: a tensor {OFFSETS} is stored, but config.json has no draft_vocab_size"
        )
    if offsets.shape != (size,):
        raise CheckpointError(
            f"{where}: {OFFSETS} has shape {list(offsets.shape)}, expected [{size}]"
        )
    ids = np.arange(size) + offsets
    outside = np.flatnonzero((ids < 0) | (ids >= spec.vocab_size))
    if outside.size:
        first = int(outside[0])
        raise CheckpointError(
            f"{where}: {OFFSETS} maps draft id {first} to target id {int(ids[first])}, outside "
            f"[0, {spec.vocab_size}) (it must hold offsets: target id - draft id)"
        )
    distinct, counts = np.unique(ids, return_counts=True)
    if distinct.size != size:
        twice = int(distinct[counts > 1][0])
        raise CheckpointError(
            f"{where}: {OFFSETS} maps several draft ids to target id {twice} "
            "(it must hold offsets: target id - draft id)"
        )
    if mask is not None and not np.array_equal(np.flatnonzero(mask), distinct):
        raise CheckpointError(f"{where}: {MASK} marks other target ids than {OFFSETS} reaches")
    return ids.astype(np.int32)
