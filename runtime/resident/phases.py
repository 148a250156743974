"""Phases of a round as CUDA graphs: one launch in the place of dozens.

A phase is work that enqueues the same each time for one key: engine steps and kernels whose
numbers and addresses are fixed, and which read all that changes from device memory.

    use        a session that can be captured on a GPU             else
    ---------  --------------------------------------------------  -------------------
    first      the work runs: an engine must have run a shape      the work runs
    second     the work is captured, the graph is launched         the work runs
    later      the graph is launched                               the work runs

Two sides may share a GPU. What a library does for a new call (memory, contexts) is kept apart from
the other side's captures.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from runtime.backends.api import CallShape, DeviceSession, DeviceStep
from runtime.device.api import Device
from runtime.device.cuda import CudaDevice
from runtime.device.cuda_graph import CapturedGraph


@dataclass(slots=True)
class _Phase:
    steps: tuple[DeviceStep, ...]
    graph: CapturedGraph | None = None


class Phases:
    """The phases of one side. ``run`` is called in work of its stream."""

    def __init__(self, device: Device, session: DeviceSession) -> None:
        self._session = session
        self._prepared: set[tuple[CallShape, int]] = set()
        self._apart: Callable[[], AbstractContextManager[object]] = nullcontext
        self._capture: Callable[[Callable[[], None], str], CapturedGraph] | None = None
        if isinstance(device, CudaDevice):
            self._apart = device.between_captures
            if session.is_capturable:
                self._capture = device.capture_in_work
        self._phases: dict[Hashable, _Phase] = {}

    @property
    def num_graphs(self) -> int:
        """Captured so far."""
        return sum(phase.graph is not None for phase in self._phases.values())

    def prepare(self, shape: CallShape) -> DeviceStep:
        """The session's step."""
        key = shape, self._session.num_rows
        if key in self._prepared:
            return self._session.prepare(shape)
        self._prepared.add(key)
        with self._apart():
            return self._session.prepare(shape)

    def run(self, key: Hashable, steps: Sequence[DeviceStep], work: Callable[[], None]) -> None:
        """Enqueue ``work``, which uses ``steps``; see the table above.

        A phase whose steps the session has made anew is begun anew.
        """
        phase = self._phases.get(key)
        if self._capture is None:
            work()
        elif phase is None or not _are_same(phase.steps, steps):
            self._phases[key] = _Phase(tuple(steps))
            with self._apart():
                work()
        else:
            if phase.graph is None:
                phase.graph = self._capture(work, f"{key}")
            phase.graph.enqueue()

    def forget(self) -> None:
        """Let go of all graphs: addresses in them may be gone."""
        self._phases.clear()
        self._prepared.clear()


def _are_same(kept: Sequence[DeviceStep], steps: Sequence[DeviceStep]) -> bool:
    return len(kept) == len(steps) and all(old is new for old, new in zip(kept, steps, strict=True))
