"""The caches of a session on a device: one allocation, known by its addresses.

A compiled engine attends a part of a cache of fixed size, so its rows never move. An engine that
runs from its graph pays for every row that it is given: rows are bound in the manifest's buckets,
and growing moves the heads apart on the device.
"""

from __future__ import annotations

import math

from engines.errors import CapacityError
from engines.manifest import EngineManifest, KvLayout
from engines.profiles import pick_bucket
from plugins.layer import DeviceTensor
from runtime.device.api import Buffer, Device
from runtime.device.copies import copies_of


def staging_bytes(kv: KvLayout, lengths: tuple[int, ...], num_slots: int) -> int:
    """Bytes that growing needs beside the caches: one part of them at the last bucket but one."""
    if len(lengths) < 2:
        return 0
    return num_slots * kv.num_kv_heads * lengths[-2] * kv.head_dim * kv.dtype.itemsize


class DeviceCaches:
    """Keys and values of all layers, each [slots, Hkv, rows, D] at the rows bound now.

    ``is_static``: all rows are bound from the start. What the methods enqueue runs on the stream
    of the work that calls them; `copy_slot` and a `bind` that grows belong in work.
    """

    def __init__(
        self, device: Device, manifest: EngineManifest, num_slots: int, *, is_static: bool
    ) -> None:
        kv = manifest.kv
        self._kv = kv
        self._lengths = (kv.rows,) if is_static else manifest.lengths
        self._num_slots = num_slots
        self._heads = num_slots * kv.num_kv_heads
        self._row_bytes = kv.head_dim * kv.dtype.itemsize
        self._copies = copies_of(device)
        # As bytes: numpy has no bfloat16.
        self.buffer: Buffer = device.allocate(
            f"{manifest.role}.kv", (2 * kv.num_layers, self._heads * kv.rows, self._row_bytes), "u1"
        )
        self._part_bytes = math.prod(self.buffer.shape[1:])
        self._staging: Buffer | None = None
        if len(self._lengths) > 1:
            size = staging_bytes(kv, self._lengths, num_slots)
            self._staging = device.allocate(f"{manifest.role}.kv moving", (size,), "u1")
        self.rows = self._lengths[0]

    @property
    def num_parts(self) -> int:
        """Keys and values of all layers."""
        return 2 * self._kv.num_layers

    def address(self, part: int, slot: int = 0) -> int:
        """Of the first row of a slot in part 2l (keys of layer l) or 2l + 1 (values)."""
        heads = slot * self._kv.num_kv_heads
        return self.buffer.address + part * self._part_bytes + heads * self.rows * self._row_bytes

    def tensors(self) -> tuple[DeviceTensor, ...]:
        """All parts at the rows bound now: key and value of layer 0, of layer 1, ..."""
        kv = self._kv
        shape = (self._num_slots, kv.num_kv_heads, self.rows, kv.head_dim)
        return tuple(
            DeviceTensor(self.address(part), kv.dtype, shape) for part in range(self.num_parts)
        )

    def bind(self, needed: int) -> bool:
        """Grow to hold ``needed`` rows; True when the row count changed. Raises CapacityError."""
        if needed <= self.rows:
            return False
        try:
            rows = pick_bucket(self._lengths, needed)
        except ValueError as error:
            raise CapacityError(f"{error}; rebuild with a larger --max-len") from None
        self._spread(rows)
        return True

    def reset(self) -> bool:
        """Back to the smallest bucket; what the caches held is void. True when that changed it."""
        changed = self.rows != self._lengths[0]
        self.rows = self._lengths[0]
        return changed

    def copy_slot(self, source: int, target: int, rows: slice) -> None:
        """Copy those rows of one slot to the same rows of another."""
        first, stop, _ = rows.indices(self.rows)
        for part in range(self.num_parts):
            self._copy_heads(
                self.address(part, source) + first * self._row_bytes,
                self.address(part, target) + first * self._row_bytes,
                max(0, stop - first),
            )

    def copy_rows(self, slot: int, source: slice, target: int) -> None:
        """Copy the rows ``source`` of a slot to consecutive rows from ``target`` on."""
        for part in range(self.num_parts):
            base = self.address(part, slot)
            for place, row in enumerate(range(*source.indices(self.rows)), start=target):
                self._copy_heads(base + row * self._row_bytes, base + place * self._row_bytes, 1)

    def _copy_heads(self, source: int, target: int, num_rows: int) -> None:
        """The same rows of all heads of one slot."""
        pitch = self.rows * self._row_bytes
        if num_rows and source != target:
            self._copies.copy_2d(
                source,
                target,
                width=num_rows * self._row_bytes,
                height=self._kv.num_kv_heads,
                source_pitch=pitch,
                target_pitch=pitch,
            )

    def _spread(self, rows: int) -> None:
        """Move the heads apart, part by part, by way of the staging memory.

        New rows keep what lay there, which is finite: nothing attends them before they are
        written, and only a NaN would matter to a masked row.
        """
        assert self._staging is not None
        old, new = self.rows * self._row_bytes, rows * self._row_bytes
        for part in range(self.num_parts):
            base, staging = self.address(part), self._staging.address
            self._copies.copy(base, staging, self._heads * old)
            self._copies.copy_2d(
                staging, base, width=old, height=self._heads, source_pitch=old, target_pitch=new
            )
        self.rows = rows
