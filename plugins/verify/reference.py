"""ssd::Verify in numpy: the meaning that every other form is tested against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

IntArray = npt.NDArray[np.int64]


def verify(
    logits: npt.NDArray[np.float32], drafts: IntArray, num_draft: IntArray
) -> tuple[IntArray, IntArray]:
    """Verify one drafted block per row, greedily.

    Args:
        logits: float32 [B, R, V]; entry i is the target's output for the place of draft i,
            the last one for the place after all drafts. No NaN.
        drafts: int64 [B, R-1], drafted target ids. R = 1 means no drafts at all.
        num_draft: int64 [B], how many drafts of a row count, from the left, 0..R-1.

    Returns:
        accepted int64 [B], the longest prefix with drafts[i] == argmax(logits[i]) and
        i < num_draft; next int64 [B], argmax(logits[accepted]). Of equal logits the lowest id.

    Raises UsageError on shapes or counts that do not fit together.
    """
    batch, rows, _ = logits.shape
    if drafts.shape != (batch, rows - 1) or num_draft.shape != (batch,):
        raise UsageError(
            f"logits {logits.shape} need drafts {(batch, rows - 1)} and num_draft {(batch,)}, "
            f"found {drafts.shape} and {num_draft.shape}"
        )
    if batch and not (num_draft.min() >= 0 and num_draft.max() < rows):
        raise UsageError(f"num_draft must lie in 0..{rows - 1}, found {num_draft.tolist()}")
    best = logits.argmax(axis=-1)  # [B, R]
    matches = (best[:, :-1] == drafts) & (np.arange(rows - 1) < num_draft[:, None])
    accepted = np.logical_and.accumulate(matches, axis=1).sum(axis=1, dtype=np.int64)
    return accepted, np.take_along_axis(best, accepted[:, None], axis=1)[:, 0]
