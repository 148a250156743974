"""What the host's sessions share: caches in row buckets, and steps made once for each shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from runtime.backends.api import CallShape
from runtime.backends.caches import RowBuckets
from runtime.device.api import Buffer

AnyStep = TypeVar("AnyStep")


class HostSession(ABC, Generic[AnyStep]):
    """The part of ``runtime.backends.api.Session`` that has to do with memory."""

    def __init__(self, caches: RowBuckets) -> None:
        self._caches = caches
        self._steps: dict[CallShape, AnyStep] = {}

    @abstractmethod
    def _make_step(self, shape: CallShape) -> AnyStep:
        """A new step for ``shape`` at the rows bound now."""

    @property
    def kv_buffer(self) -> Buffer:
        return self._caches.buffer

    @property
    def num_rows(self) -> int:
        """Rows a slot that are bound now."""
        return self._caches.rows

    def cache(self, part: int) -> np.ndarray:
        """Keys (2 * layer) or values (2 * layer + 1), [slots, Hkv, ``num_rows``, D], in place."""
        return self._caches.view(part)

    def bind_rows(self, needed: int) -> None:
        if self._caches.bind(needed):
            self._steps.clear()

    def reset_rows(self) -> None:
        if self._caches.reset():
            self._steps.clear()

    def shrink_rows(self, needed: int, kept: Sequence[int]) -> None:
        if self._caches.shrink(needed, kept):
            self._steps.clear()

    def prepare(self, shape: CallShape) -> AnyStep:
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = self._make_step(shape)
        return step

    def copy_rows(self, slot: int, source: slice, destination: int) -> None:
        self._caches.copy_rows(slot, source, destination)

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        self._caches.copy_slot(source, destination, rows)

    def swap_slots(self, first: int, second: int, rows: slice) -> None:
        self._caches.swap_slots(first, second, rows)

    def close(self) -> None:
        self._steps.clear()
