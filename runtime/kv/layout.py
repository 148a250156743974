"""Rows and masks of one slot: scratch rows for branches first, then trunk rows for the text.

    row            0 ............ scratch_rows-1 | scratch_rows ................. rows-1
    holds          depth d, branch j at d*W + j  | position n of the text at scratch_rows + n

Positions are logical (RoPE), rows are physical, so a row may move without changing its meaning:
committing a branch copies its K rows from scratch to the trunk. Rejecting tokens moves a length
back; the rows they left are overwritten by position. Everything here is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from engines.manifest import KvLayout

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """``num_branches`` (W) is the stride of the scratch rows; 0 for a target."""

    kv: KvLayout
    num_branches: int

    def trunk_row(self, position: int) -> int:
        return self.kv.scratch_rows + position

    def scratch_row(self, depth: int) -> int:
        """First row of a depth; branch j lies j rows further."""
        return depth * self.num_branches

    def rows_for(self, num_positions: int) -> int:
        """Rows that must be bound to hold ``num_positions`` positions of text (and the scratch)."""
        return self.kv.scratch_rows + num_positions

    def trunk_rows(self, num_positions: int) -> slice:
        """The rows of the first ``num_positions`` positions of the text."""
        return slice(self.kv.scratch_rows, self.kv.scratch_rows + num_positions)

    def branch_rows(self, branch: int, depth: int) -> slice:
        """The ``depth`` scratch rows of one branch, in order of depth."""
        return slice(branch, self.scratch_row(depth), self.num_branches)


def trunk_mask(mask: np.ndarray, layout: SlotLayout, start: int | Lengths) -> None:
    """Fill ``mask`` [..., T, L] for T consecutive tokens of each text, the first of them at
    position ``start`` [...].

    Token i attends positions 0 .. start + i and no scratch row. ``mask`` must be contiguous.

    Bytes instead of numpy: that lets other threads have the interpreter while it fills so many
    cells, and a verification is kept waiting for them. It takes less time, too.
    """
    num_tokens, num_rows = mask.shape[-2:]
    scratch = bytes(layout.kv.scratch_rows)
    count = num_rows - len(scratch)
    ramp = _ramp(count)
    mask.data.cast("B")[:] = b"".join(
        scratch + ramp[count - 1 - last : 2 * count - 1 - last]
        for first in np.atleast_1d(start).tolist()
        for last in range(first, first + num_tokens)
    )


def branch_mask(mask: np.ndarray, layout: SlotLayout, lengths: Lengths, depth: int) -> None:
    """Fill ``mask`` [..., W, L] for step ``depth`` of the branches of each slot.

    Branch j attends the first ``lengths[..., j]`` positions of the text and its own scratch rows
    of depths 0 .. ``depth``. A branch of length 0 is padding and attends just the latter.
    """
    num_branches, num_rows = mask.shape[-2:]
    scratch = layout.kv.scratch_rows
    ends = np.asarray(lengths, np.int32)[..., None]
    np.less(_count(num_rows - scratch), ends, out=mask[..., scratch:])
    mask[..., :scratch] = _own_rows(scratch, layout.num_branches, num_branches, depth)


@cache
def _ramp(count: int) -> bytes:
    """So many cells that are attended, then as many that are not."""
    return b"\1" * count + b"\0" * count


@cache
def _count(stop: int) -> np.ndarray:
    """int32 [stop]: 0, 1, ... Half as wide as usual, since a mask compares each of its cells."""
    numbers = np.arange(stop, dtype=np.int32)
    numbers.flags.writeable = False
    return numbers


@cache
def _own_rows(scratch_rows: int, stride: int, num_branches: int, depth: int) -> np.ndarray:
    """bool [num_branches, scratch_rows]: the scratch rows of each branch down to ``depth``."""
    rows = np.arange(scratch_rows)
    is_own_branch = rows % stride == np.arange(num_branches)[:, None]
    own: np.ndarray = is_own_branch & (rows < (depth + 1) * stride)
    own.flags.writeable = False
    return own
