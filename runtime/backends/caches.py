"""The caches of a host session: one allocation, viewed in row buckets, re-laid out on growth."""

from __future__ import annotations

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
        self.rows = self._manifest.lengths[0]
        return changed

    def copy_rows(self, slot: int, source: slice, destination: int) -> None:
        count = len(range(*source.indices(self.rows)))
        for layer in range(2 * self._manifest.kv.num_layers):
            heads = self.view(layer)[slot]  # [Hkv, rows, D]
            heads[:, destination : destination + count] = heads[:, source]

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        """Copy those rows of one slot to the same rows of another."""
        for part in range(2 * self._manifest.kv.num_layers):
            slots = self.view(part)
            slots[destination, :, rows] = slots[source, :, rows]

    def zero(self) -> None:
        """A NaN left in a masked row would poison later outputs."""
        self.buffer.array[:] = 0

    def _grow(self, rows: int) -> None:
        """Spread the heads apart, the last first, so that nothing is overwritten unread."""
        width = self._manifest.kv.head_dim
        old, new = self.rows * width, rows * width
        for flat in self.buffer.array:
            for head in range(self._heads - 1, -1, -1):
                flat[head * new : head * new + old] = flat[head * old : head * old + old]
                flat[head * new + old : (head + 1) * new] = 0
        self.rows = rows
