"""Phases of a round as CUDA graphs: one launch in the place of dozens.

A phase is work that enqueues the same each time for one key: engine steps and kernels whose
numbers and addresses are fixed, and which read all that changes from device memory.

    use        a session that can be captured on a GPU             else
    ---------  --------------------------------------------------  -------------------
    first      the work runs: an engine must have run a shape      the work runs
    second     the work is captured, the graph is launched         the work runs
    later      the graph is launched                               the work runs

Two sides may share a GPU. What a library does for a new call is kept apart from the other side's
captures: it takes memory, makes contexts, loads kernels, or captures a graph of its own, for which
the first two uses are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from logging import getLogger

from engines.errors import SsdError
from runtime.backends.api import CallShape, DeviceSession, DeviceStep
from runtime.device.api import Device
from runtime.device.cuda import CudaDevice
from runtime.device.cuda_graph import CapturedGraph

_logger = getLogger(__name__)

MOST_KEPT = 256
"""Phases of a side: a graph takes memory of the GPU, so those not used for longest are let go."""


@dataclass(slots=True)
class _Phase:
    steps: tuple[DeviceStep, ...]
    num_runs: int = 0
    graph: CapturedGraph | None = None


class Phases:
    """The phases of one side. ``run`` is called in work of its stream."""

    def __init__(self, device: Device, session: DeviceSession) -> None:
        self._session = session
        self._prepared: set[tuple[CallShape, int]] = set()
        self._enqueued: set[tuple[CallShape, tuple[int, ...]]] = set()
        self._apart: Callable[[], AbstractContextManager[object]] = nullcontext
        self._capture: Callable[[Callable[[], None], str], CapturedGraph] | None = None
        self._is_gpu = isinstance(device, CudaDevice)
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

        A phase whose steps the session has made anew is begun anew. One that CUDA, or the engine,
        does not let be captured is enqueued call by call, with a warning.
        """
        if not self._is_gpu:
            work()
            return
        phase = self._phases.pop(key, None)
        if phase is None or not _are_same(phase.steps, steps):
            phase = _Phase(tuple(steps))
        self._phases[key] = phase  # the last one used stands last
        if len(self._phases) > MOST_KEPT:
            del self._phases[next(iter(self._phases))]
        if phase.num_runs == 1:
            phase.graph = self._captured(key, work)
        if phase.graph is not None:
            phase.graph.enqueue()
        else:
            with self._apart() if phase.num_runs < 2 else nullcontext():
                work()
        phase.num_runs += 1

    def _captured(self, key: Hashable, work: Callable[[], None]) -> CapturedGraph | None:
        if self._capture is None:
            return None
        try:
            return self._capture(work, f"{key}")
        except SsdError as error:  # if the GPU is lost, the work will say so
            _logger.warning("%s does not become a CUDA graph, so rounds are slower: %s", key, error)
            return None

    def enqueue(self, step: DeviceStep) -> None:
        """Enqueue a step that is never captured, like a prompt's; see the table's last column."""
        key = step.shape, step.mask.shape
        if key in self._enqueued:
            step.enqueue()
            return
        with self._apart():
            step.enqueue()
        self._enqueued.add(key)

    def forget(self) -> None:
        """Let go of all graphs: addresses in them may be gone."""
        self._phases.clear()
        self._prepared.clear()


def _are_same(kept: Sequence[DeviceStep], steps: Sequence[DeviceStep]) -> bool:
    return len(kept) == len(steps) and all(old is new for old, new in zip(kept, steps, strict=True))
