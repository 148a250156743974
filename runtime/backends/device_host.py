"""A host session behind the device's interface: what lies in device memory lies in the host's.

So everything that is written for GPUs, with kernels compiled for the host, runs and is tested
where there is none.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from engines.manifest import EngineManifest
from engines.tensors import DType
from plugins.layer import DeviceTensor
from runtime.backends.api import CallShape, Session, Step
from runtime.device.api import Buffer


class HostedSession(Session, Protocol):
    """A session that shows its caches (``runtime.backends.host.HostSession``)."""

    @property
    def num_rows(self) -> int:
        """Rows a slot that are bound now."""

    def cache(self, part: int) -> np.ndarray:
        """Keys (2 * layer) or values (2 * layer + 1), [slots, Hkv, ``num_rows``, D]."""


class HostDeviceSession:
    """See ``runtime.backends.api.DeviceSession``; takes the session over."""

    is_capturable = False

    def __init__(self, session: HostedSession) -> None:
        self.manifest: EngineManifest = session.manifest
        self.vocab_map: np.ndarray | None = session.vocab_map
        self._session = session
        self._steps: dict[CallShape, HostDeviceStep] = {}

    @property
    def kv_buffer(self) -> Buffer:
        return self._session.kv_buffer

    @property
    def num_rows(self) -> int:
        return self._session.num_rows

    @property
    def caches(self) -> tuple[DeviceTensor, ...]:
        num_parts = 2 * self.manifest.kv.num_layers
        return tuple(tensor_of(self._session.cache(part)) for part in range(num_parts))

    def bind_rows(self, needed: int) -> None:
        before = self.num_rows
        self._session.bind_rows(needed)
        self._forget_steps(before)

    def reset_rows(self) -> None:
        before = self.num_rows
        self._session.reset_rows()
        self._forget_steps(before)

    def prepare(self, shape: CallShape) -> HostDeviceStep:
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = HostDeviceStep(self._session.prepare(shape))
        return step

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        self._session.copy_slot(source, destination, rows)

    def close(self) -> None:
        self._steps.clear()
        self._session.close()

    def _forget_steps(self, rows_before: int) -> None:
        if self.num_rows != rows_before:
            self._steps.clear()


class HostDeviceStep:
    """See ``runtime.backends.api.DeviceStep``. Holds the step whose arrays its addresses name."""

    def __init__(self, step: Step) -> None:
        self.shape: CallShape = step.shape
        self.tokens = tensor_of(step.tokens)
        self.positions = tensor_of(step.positions)
        self.write_at = tensor_of(step.write_at)
        self.mask = tensor_of(step.mask[:, None])
        self.logit_rows = tensor_of(step.logit_rows)
        self.num_draft = tensor_of(step.num_draft)
        self.logits = tensor_of(step.logits)
        self._step = step

    def enqueue(self) -> None:
        self._step.run()


def tensor_of(array: np.ndarray) -> DeviceTensor:
    """A dense host array by its address; whoever uses the tensor keeps the array alive."""
    assert array.flags.c_contiguous
    return DeviceTensor(array.ctypes.data, DType(array.dtype.name), array.shape)
