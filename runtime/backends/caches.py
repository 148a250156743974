"""The caches of a host session: one allocation, viewed in row buckets, re-laid out on growth.

    a layer's part    bound, [slots, Hkv, rows, D] | unused | laid aside, [n, slots * Hkv, D]

What is laid aside are the rows behind the bound ones that were in use before fewer were bound. They
end where the memory ends, so that they lie still while what is bound grows towards them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engines.errors import CapacityError
from engines.manifest import EngineManifest
from engines.profiles import pick_bucket
from runtime.device.api import Buffer, Device


class RowBuckets:
    """Keys and values of all layers, [2 * layers, slots, Hkv, rows, D] at the bound row count.

    A call pays for every row it is given, so rows are bound in the manifest's buckets. The
    memory is that of the largest bucket; a smaller one is a prefix of each layer's part.
    """

    def __init__(self, device: Device, manifest: EngineManifest, num_slots: int) -> None:
        kv = manifest.kv
        self._manifest = manifest
        self._heads = num_slots * kv.num_kv_heads
        self._num_slots = num_slots
        self.buffer: Buffer = device.allocate(
            f"{manifest.role}.kv",
            (2 * kv.num_layers, self._heads * kv.rows * kv.head_dim),
            kv.dtype.numpy,
        )
        self.rows = manifest.lengths[0]
        self._held = self.rows  # rows that hold something: those beyond ``rows`` are laid aside

    def view(self, layer: int) -> np.ndarray:
        """Part ``layer`` (keys 2l, values 2l + 1) as [slots, Hkv, rows, D] at the bound rows."""
        kv = self._manifest.kv
        flat = self.buffer.array[layer, : self._heads * self.rows * kv.head_dim]
        return flat.reshape(self._num_slots, kv.num_kv_heads, self.rows, kv.head_dim)

    def bind(self, needed: int) -> bool:
        """Grow to hold ``needed`` rows; True when the row count changed."""
        if needed <= self.rows:
            return False
        try:
            rows = pick_bucket(self._manifest.lengths, needed)
        except ValueError as error:
            raise CapacityError(f"{error}; rebuild with a larger --max-len") from None
        self._grow(rows)
        return True

    def reset(self) -> bool:
        """Back to the smallest bucket; True when the row count changed."""
        changed = self.rows != self._manifest.lengths[0]
        self.rows = self._held = self._manifest.lengths[0]
        return changed

    def shrink(self, needed: int, kept: Sequence[int]) -> bool:
        """Bind as few rows as hold ``needed``; True when the row count changed. The first
        ``kept[i]`` rows of slot i stay what they are, bound or laid aside."""
        new, old = pick_bucket(self._manifest.lengths, needed), self.rows
        if new >= old:
            return False
        heads, width = self._manifest.kv.num_kv_heads, self._manifest.kv.head_dim
        going = [(slot, min(num, old)) for slot, num in enumerate(kept) if num > new]
        for layer, flat in enumerate(self.buffer.array):
            self.rows = old
            view = self.view(layer)
            taken = [view[slot, :, new:end].copy() for slot, end in going]
            for head in range(1, self._heads):
                flat[head * new * width : (head + 1) * new * width] = flat[
                    head * old * width : (head * old + new) * width
                ]
            self.rows = new
            aside = self._aside(layer)
            for (slot, end), rows in zip(going, taken, strict=True):
                of_slot = slice(slot * heads, (slot + 1) * heads)
                aside[: end - new, of_slot] = rows.transpose(1, 0, 2)
        return True

    def copy_rows(self, slot: int, source: slice, destination: int) -> None:
        count = len(range(*source.indices(self.rows)))
        for layer in range(2 * self._manifest.kv.num_layers):
            heads = self.view(layer)[slot]  # [Hkv, rows, D]
            heads[:, destination : destination + count] = heads[:, source]

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        """Copy those rows of one slot to the same rows of another."""
        for slots in self._everywhere(rows):
            slots[destination] = slots[source]

    def swap_slots(self, first: int, second: int, rows: slice) -> None:
        """Let those rows of two slots change places."""
        for slots in self._everywhere(rows):
            slots[[first, second]] = slots[[second, first]]

    def zero(self) -> None:
        """A NaN left in a masked row would poison later outputs."""
        self.buffer.array[:] = 0

    def _grow(self, rows: int) -> None:
        """Spread the heads apart, the last first, so that nothing is overwritten unread; rows that
        were laid aside come back."""
        width = self._manifest.kv.head_dim
        num_back = max(0, min(rows, self._held) - self.rows)
        old, new, back = self.rows * width, rows * width, (self.rows + num_back) * width
        for layer, flat in enumerate(self.buffer.array):
            returning = self._aside(layer)[:num_back].copy()
            for head in range(self._heads - 1, -1, -1):
                flat[head * new : head * new + old] = flat[head * old : head * old + old]
                flat[head * new + old : head * new + back] = returning[:, head].reshape(-1)
                flat[head * new + back : (head + 1) * new] = 0
        self.rows = rows
        self._held = max(rows, self._held)

    def _aside(self, layer: int) -> np.ndarray:
        """Rows ``rows`` .. ``_held`` - 1 of a layer's part, [rows, slots * Hkv, D]."""
        width = self._manifest.kv.head_dim
        num = self._held - self.rows
        flat: np.ndarray = self.buffer.array[layer]
        return flat[len(flat) - num * self._heads * width :].reshape(num, self._heads, width)

    def _everywhere(self, rows: slice) -> Iterator[np.ndarray]:
        """Those rows of every layer's part, wherever they are: arrays whose first axis is the
        slot."""
        first, last, _ = rows.indices(max(self.rows, self._held))
        for layer in range(2 * self._manifest.kv.num_layers):
            yield self.view(layer)[:, :, first : min(last, self.rows)]
            if last > self.rows:
                aside = self._aside(layer)
                of_slots = aside.reshape(len(aside), self._num_slots, -1)
                yield of_slots[max(0, first - self.rows) : last - self.rows].swapaxes(0, 1)
