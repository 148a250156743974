"""Rows and masks of one slot: scratch rows for branches first, then trunk rows for the text.

    row            0 ............ scratch_rows-1 | scratch_rows ................. rows-1
    holds          depth d, branch j at d*W + j  | position n of the text at scratch_rows + n

Positions are logical (RoPE), rows are physical, so a row may move without changing its meaning:
committing a branch copies its K rows from scratch to the trunk. Rejecting tokens moves a length
back; the rows they left are overwritten by position. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.manifest import KvLayout


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

    def branch_rows(self, branch: int, depth: int) -> slice:
        """The ``depth`` scratch rows of one branch, in order of depth."""
        return slice(branch, self.scratch_row(depth), self.num_branches)


def trunk_mask(mask: np.ndarray, layout: SlotLayout, start: int) -> None:
    """Fill ``mask`` [T, L] for T consecutive tokens of the text, the first at position ``start``.

    Token i attends positions 0 .. start + i and no scratch row.
    """
    rows = np.arange(mask.shape[1])
    last = layout.trunk_row(start) + np.arange(mask.shape[0])
    np.less_equal(rows[None, :], last[:, None], out=mask)
    mask[:, : layout.kv.scratch_rows] = False


def branch_mask(mask: np.ndarray, layout: SlotLayout, lengths: Sequence[int], depth: int) -> None:
    """Fill ``mask`` [W, L] for step ``depth`` of the branches of one slot.

    Branch j attends the first ``lengths[j]`` positions of the text and its own scratch rows of
    depths 0 .. ``depth``. Branches beyond ``len(lengths)`` are padding and attend just the latter.
    """
    mask[:] = False
    stride, base = layout.num_branches, layout.kv.scratch_rows
    branches = np.arange(mask.shape[0])
    for step in range(depth + 1):
        mask[branches, step * stride + branches] = True
    for branch, length in enumerate(lengths):
        mask[branch, base : base + length] = True
