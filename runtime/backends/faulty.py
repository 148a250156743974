"""A session that fails or hangs at a chosen call: any other session, with one fault in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from threading import Event as Flag

import numpy as np

from engines.errors import BackendError
from engines.manifest import EngineManifest
from runtime.backends.api import CallShape, KeepingSession, Step
from runtime.device.api import Buffer

# Only a hang that nobody releases lasts so long; its thread must end some time.
_LONGEST_S = 120.0


class FaultySession:
    """See ``runtime.backends.api.KeepingSession``. Its ``fail_at``-th engine call (from 0) raises
    BackendError and zeroes nothing; with ``hangs`` it waits for ``release`` instead, then runs.
    """

    def __init__(self, inner: KeepingSession, fail_at: int, *, hangs: bool = False) -> None:
        self.inner = inner
        self.num_runs = 0
        self._fail_at = fail_at
        self._hangs = hangs
        self._released = Flag()

    @property
    def manifest(self) -> EngineManifest:
        return self.inner.manifest

    @property
    def vocab_map(self) -> np.ndarray | None:
        return self.inner.vocab_map

    @property
    def kv_buffer(self) -> Buffer:
        return self.inner.kv_buffer

    @property
    def has_struck(self) -> bool:
        """Whether the fault has happened."""
        return self.num_runs > self._fail_at

    def release(self) -> None:
        """End the hang."""
        self._released.set()

    def run(self, run: Callable[[], None]) -> None:
        """One engine call, or the fault."""
        self.num_runs += 1
        if self.num_runs == self._fail_at + 1:
            if not self._hangs:
                raise BackendError(f"engine call {self._fail_at} failed, as it was told to")
            self._released.wait(_LONGEST_S)
        run()

    def bind_rows(self, needed: int) -> None:
        self.inner.bind_rows(needed)

    def reset_rows(self) -> None:
        self.inner.reset_rows()

    def shrink_rows(self, needed: int, kept: Sequence[int]) -> None:
        self.inner.shrink_rows(needed, kept)

    def swap_slots(self, first: int, second: int, rows: slice) -> None:
        self.inner.swap_slots(first, second, rows)

    def prepare(self, shape: CallShape) -> Step:
        step = self.inner.prepare(shape)
        shared = {name: getattr(step, name) for name in _ARRAYS}
        return _FaultyStep(**shared, _session=self, _inner=step)

    def copy_rows(self, slot: int, source: slice, destination: int) -> None:
        self.inner.copy_rows(slot, source, destination)

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        self.inner.copy_slot(source, destination, rows)

    def close(self) -> None:
        self.release()
        self.inner.close()


@dataclass(slots=True)
class _FaultyStep:
    """See ``runtime.backends.api.Step``. The arrays are the inner step's own."""

    shape: CallShape
    tokens: np.ndarray
    positions: np.ndarray
    write_at: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray
    num_draft: np.ndarray
    logits: np.ndarray
    accepted: np.ndarray
    next: np.ndarray
    sample: np.ndarray
    _session: FaultySession
    _inner: Step

    def run(self) -> None:
        self._session.run(self._inner.run)


_ARRAYS = [field.name for field in fields(_FaultyStep) if not field.name.startswith("_")]
