"""Keys and values of many rows in one pool of blocks, and attention over them.

A row's tokens lie in blocks that need not be neighbours (as in PagedAttention, Kwon et al. 2023),
so that one product reads the blocks in use, which are the first ones of the pool. With rows padded
to the longest, two to three times as much would be read where lengths differ.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from export.checkpoint.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Ints = npt.NDArray[np.int64]

SIZE = 64  # tokens a block


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, which take no memory of a CPU before something is written: numpy's do so, torch's
    do not."""
    import torch

    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    plain = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(plain).view(dtype).view(shape)


class Blocks:
    """Room for ``num_rows`` rows of ``max_len`` tokens. A CPU's memory is taken when it is used."""

    def __init__(
        self,
        spec: ModelSpec,
        num_rows: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        import torch

        num_blocks = -(-max_len // SIZE)
        self.device, self.num_heads, self.num_kv_heads = device, spec.num_heads, spec.num_kv_heads
        pool = (spec.num_layers, num_rows * num_blocks, spec.num_kv_heads, SIZE, spec.head_dim)
        # Biases make scores of hundreds (Qwen2), which a product of 16-bit keys would round.
        self.keys = zeros(pool, torch.float32 if spec.qkv_bias else dtype, device)
        self.values = zeros(pool, dtype, device)
        self.table = np.zeros((num_rows, num_blocks), np.int64)
        self._sizes = np.zeros(num_rows, np.int64)  # blocks that a row has
        self._free = list(range(num_rows * num_blocks))  # a heap: the used ones stay in front

    def fit(self, row: int, num_tokens: int) -> None:
        """Give ``row`` the blocks for ``num_tokens``; what it has beyond them becomes free."""
        wanted, size = -(-num_tokens // SIZE), int(self._sizes[row])
        for at in range(wanted, size):
            heapq.heappush(self._free, int(self.table[row, at]))
        for at in range(size, wanted):
            self.table[row, at] = heapq.heappop(self._free)
        self._sizes[row] = wanted

    def tables(self, rows: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The blocks of ``rows`` [n], as many as the longest has, and which are theirs.

        In both, [n, blocks]; beyond a row's end the table names block 0.
        """
        sizes = self._sizes[rows]
        longest = int(sizes.max())
        theirs = np.arange(longest) < sizes[:, None]
        return np.where(theirs, self.table[rows, :longest], 0), theirs

    def store(self, layer: int, key: Tensor, value: Tensor, places: tuple[Tensor, Tensor]) -> None:
        """Keep ``key`` and ``value`` [N, Hkv, D] at ``places``: each token's block and offset."""
        block, offset = places
        self.keys[layer][block, :, offset] = key.to(self.keys.dtype)
        self.values[layer][block, :, offset] = value

    def places(self, rows: Ints, positions: Ints) -> tuple[Tensor, Tensor]:
        """Block and offset of the token at ``positions`` [N] of ``rows`` [N]."""
        block = self.table[rows, positions // SIZE]
        return self.tensor(block), self.tensor(positions % SIZE)

    def tensor(self, numbers: npt.NDArray[np.generic]) -> Tensor:
        """``numbers`` where the pool is."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.device)

    def hides(self, seen: npt.NDArray[np.bool_]) -> Tensor:
        """What to add to scores: 0 where ``seen``, else -inf; float32."""
        return self.tensor(np.where(seen, np.float32(0), np.float32(-np.inf)))


class Step:
    """One new token of each row, which attends all of its row up to itself."""

    def __init__(self, blocks: Blocks, rows: Ints, positions: Ints) -> None:
        self._blocks = blocks
        table, theirs = blocks.tables(rows)
        row, slot = np.nonzero(theirs)
        block = table[row, slot]
        num_used = int(block.max()) + 1
        # Idle blocks among them are asked what the first row asks; a row more takes their answers.
        asker, last = np.zeros((2, num_used), np.int64)
        owner = np.full(num_used, len(rows))
        asker[block] = owner[block] = row
        last[block] = positions[row] - slot * SIZE
        self._asker, self._owner = blocks.tensor(asker), blocks.tensor(owner)
        self._table, self._absent = blocks.tensor(table), blocks.tensor(~theirs)[..., None]
        self._hides = blocks.hides(np.arange(SIZE) <= last[:, None])[:, None, None]

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """What ``query`` [n, H, D] finds, [n, H, D]; the new keys and values are stored before.

        Softmax is of one block at a time; a row weighs what its blocks found by their sums of
        exponentials (Milakov and Gimelshein 2018).
        """
        import torch
        from torch.nn import functional

        blocks, owner = self._blocks, self._owner
        num_used, (num_rows, num_heads, width) = len(owner), query.shape
        kv_heads, shared = blocks.num_kv_heads, num_heads // blocks.num_kv_heads
        keys = blocks.keys[layer][:num_used].view(-1, SIZE, width)
        values = blocks.values[layer][:num_used].view(-1, SIZE, width)

        asked = query[self._asker].view(-1, shared, width).to(keys.dtype)  # [used * Hkv, G, D]
        # Keys first: with the few queries first torch copies the keys.
        scores = torch.bmm(keys, asked.transpose(1, 2)).transpose(1, 2)
        scores = scores.reshape(num_used, kv_heads, shared, SIZE)
        scores = torch.add(self._hides, scores, alpha=width**-0.5)  # float32
        shares = scores.softmax(-1)
        # log of the sum that softmax divided by: what has the largest score has 1 / sum.
        sums = (scores.amax(-1) - shares.amax(-1).log()).view(num_used, num_heads)
        shares = shares.to(query.dtype).view(-1, shared, SIZE)
        found = torch.bmm(shares, values).view(num_used, num_heads, width).float()

        by_row = sums[self._table].masked_fill_(self._absent, -torch.inf)  # [n, slots, H]
        largest = functional.pad(by_row.amax(1), (0, 0, 0, 1))
        weights = (sums - largest[owner]).exp_()  # of row n anything, which is cut off
        weight = sums.new_zeros((num_rows + 1, num_heads)).index_add_(0, owner, weights)
        total = sums.new_zeros((num_rows + 1, num_heads, width))
        total.index_add_(0, owner, found.mul_(weights[..., None]))
        return (total[:num_rows] / weight[:num_rows, :, None]).to(query.dtype)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The tokens ``start`` to ``end`` of a row, new ones."""

    row: int
    start: int
    end: int


class Read:
    """Several new tokens of each row, laid end to end; each attends its row up to itself."""

    def __init__(self, blocks: Blocks, stretches: Sequence[Stretch]) -> None:
        self._blocks = blocks
        table, _ = blocks.tables(np.array([each.row for each in stretches]))
        counts = np.array([each.end - each.start for each in stretches])
        self._longest = int(counts.max())
        self._table = blocks.tensor(table)
        self._row = blocks.tensor(np.repeat(np.arange(len(stretches)), counts))
        self._at = blocks.tensor(np.concatenate([np.arange(count) for count in counts]))
        first = np.array([each.start for each in stretches])
        last = first[:, None] + np.arange(self._longest)  # what a token sees last: itself
        seen = np.arange(table.shape[1] * SIZE) <= last[..., None]
        hides = blocks.hides(seen)[:, None].to(blocks.values.dtype)
        shared = blocks.num_heads // blocks.num_kv_heads
        self._hides = hides.repeat(1, 1, shared, 1)  # [n, 1, G * T, slots * SIZE]

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """What ``query`` [N, H, D] finds, alike; the new keys and values are stored before."""
        from torch.nn import functional

        blocks, num_rows = self._blocks, len(self._table)
        _, num_heads, width = query.shape
        kv_heads, shared = blocks.num_kv_heads, num_heads // blocks.num_kv_heads
        padded = query.new_zeros((num_rows, self._longest, num_heads, width))
        padded[self._row, self._at] = query
        # The query heads that share keys become rows of one head, so that keys stay as they are.
        grouped = padded.view(num_rows, -1, kv_heads, shared, width).permute(0, 2, 3, 1, 4)
        grouped = grouped.reshape(num_rows, kv_heads, -1, width)
        found = functional.scaled_dot_product_attention(
            grouped,
            self._gathered(blocks.keys[layer]).to(query.dtype),
            self._gathered(blocks.values[layer]),
            attn_mask=self._hides,
        )
        found = found.view(num_rows, kv_heads, shared, self._longest, width)
        return found.permute(0, 3, 1, 2, 4)[self._row, self._at].reshape(query.shape)

    def _gathered(self, pool: Tensor) -> Tensor:
        """A layer's blocks of these rows, [n, Hkv, slots * SIZE, D]."""
        ours = pool[self._table].transpose(1, 2)
        return ours.reshape(*ours.shape[:2], -1, ours.shape[-1])
