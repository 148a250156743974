"""The masks in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def trunk_mask(
    write_at: IntArray, num_tokens: int, num_attended: int, scratch_rows: int
) -> BoolArray:
    """bool [B, 1, T, L] for T consecutive tokens of each row's text, the first at cache row
    ``write_at`` [B]."""
    rows = np.arange(num_attended)
    last = write_at[:, None, None] + np.arange(num_tokens)[:, None]  # [B, T, 1]
    mask: BoolArray = (rows >= scratch_rows) & (rows <= last)
    return mask[:, None]


def branch_mask(
    lengths: IntArray, depth: int, num_attended: int, scratch_rows: int, num_branches: int
) -> BoolArray:
    """bool [B, 1, T, L] for step ``depth`` of T branches of each row, which follow the first
    ``lengths`` [B, T] positions of the text. T <= ``num_branches``, the stride of scratch rows.
    """
    rows = np.arange(num_attended)
    in_text = (rows >= scratch_rows) & (rows < scratch_rows + lengths[:, :, None])  # [B, T, L]
    branch = np.arange(lengths.shape[1])[:, None]  # [T, 1]
    is_own = (rows < scratch_rows) & (rows // num_branches <= depth)
    mask: BoolArray = in_text | (is_own & (rows % num_branches == branch))
    return mask[:, None]
