"""The CUDA device: streams, events, buffers and graphs of one GPU, on cuda.core.

Everything that `api` promises and the host device does with threads happens here with the same
threads; `cuda_lane` adds the CUDA stream and its events, `cuda_graph` the CUDA graphs,
`cuda_memory` the memory. What differs for those who use it:

- Work runs on its stream's thread and enqueues on `current_stream()`. Events order what it
  enqueues. Python code in work runs when the thread gets there, which is usually before the GPU
  has done anything: only the host, after a sync, may read what the GPU wrote. (Work that must
  look itself calls ``current_stream().sync()``, which blocks its thread.)
- Buffers lie in the GPU's memory and have no `array`, unless they are page-locked.
- Launches of `Enqueue` work become CUDA graphs when they are captured; `end_capture` builds
  them, and blocks until the stream's thread has.
- An error of the GPU spoils the whole CUDA context: every stream of the GPU then fails at its next
  sync, and marks that were set before the failure may too.
- A stream may record, and wait for, an event of another CudaDevice. The order checkers of two
  devices know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any, TypeVar, cast
from weakref import finalize

import numpy.typing as npt

from engines.errors import DeviceError, MissingDependencyError
from runtime.device.api import Access, Event
from runtime.device.cuda_api import CudaCore, Gpu, GpuStream
from runtime.device.cuda_driver import CoreAndDriver
from runtime.device.cuda_errors import cuda_call
from runtime.device.cuda_graph import CapturedGraph, Enqueue, KeptLaunch, build
from runtime.device.cuda_lane import CudaLane, CudaMark, current_stream
from runtime.device.cuda_link import CudaLink
from runtime.device.cuda_memory import CudaBuffer, CudaHeap
from runtime.device.cuda_partition import SmPartitions
from runtime.device.host import HostDevice
from runtime.device.lane import HOST, Clock, Launch, Mark, WaitFor, work_name
from runtime.device.queued import QueuedEvent, QueuedGraph, QueuedStream

__all__ = [
    "CudaBuffer",
    "CudaDevice",
    "CudaLink",
    "CudaStream",
    "CudaStreamOptions",
    "Enqueue",
    "current_stream",
    "load_cuda",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CudaStreamOptions:
    """How a stream shares its GPU with the others.

    `is_urgent`: its kernels go first where both have some waiting. `sm_share`: the part of the
    multiprocessors, above 0 and below 1, that belongs to the stream alone; None for all of them,
    shared.
    """

    is_urgent: bool = False
    sm_share: float | None = None

    def __post_init__(self) -> None:
        if self.sm_share is not None and not 0 < self.sm_share < 1:
            raise DeviceError(
                f"sm_share is {self.sm_share:g}; expected a part of the GPU above 0 and below 1, "
                "or none"
            )


class CudaDevice(HostDevice):
    """One GPU. See `api.Device` and the notes above.

    `streams` has options for streams by name. With `pinned`, `allocate` gives page-locked host
    memory too. `check` and `close_timeout_s` are those of HostDevice. `core` stands in for
    cuda.core in tests.

    Raises MissingDependencyError without cuda.core, DeviceError where the GPU cannot be opened.
    """

    def __init__(
        self,
        ordinal: int = 0,
        *,
        streams: Mapping[str, CudaStreamOptions] | None = None,
        pinned: bool = False,
        check: bool = False,
        close_timeout_s: float = 10.0,
        core: CudaCore | None = None,
    ) -> None:
        super().__init__(f"cuda:{ordinal}", check=check, close_timeout_s=close_timeout_s)
        self.ordinal = ordinal
        self.core = load_cuda() if core is None else core
        self._options = dict(streams or {})
        self._is_pinned = pinned
        self._partitions = SmPartitions(self.core, self.name)
        lane = self._open_lane(f"{self.name} memory", None)
        try:
            self._heap = CudaHeap(self.core, ordinal, self.name, lane)
        except BaseException:
            lane.close()
            raise

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> CudaStream:
        self.require_host_thread("create_stream")
        self._require_open("create_stream")
        if name in self._streams or name == HOST:
            raise DeviceError(
                f"device {self.name!r} has {name!r} already; close that stream or choose another "
                "name"
            )
        stream = CudaStream(self, self._open_lane(name, cores))
        self._streams[name] = stream
        return stream

    def allocate(  # type: ignore[override]
        self, name: str, shape: Sequence[int], dtype: npt.DTypeLike
    ) -> CudaBuffer:
        return self._allocate("allocate", name, shape, dtype, self._is_pinned)

    def allocate_pinned(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> CudaBuffer:
        """Like `allocate`, in page-locked host memory, which the host and every GPU can access."""
        return self._allocate("allocate_pinned", name, shape, dtype, True)

    def when_idle(self, close: Callable[[], None]) -> None:
        """Call `close` once the GPU has done all that is enqueued by now, and return at once.

        For what a library holds on the GPU. From any thread; `close` runs on the thread of the
        device's memory, whose GPU is set, and must not raise. Raises DeviceError once the device
        is closed: then nothing runs any more.
        """
        self._require_open("when_idle")
        self._heap.retire(close)

    @property
    def capability(self) -> str:
        """The GPU's compute capability: "9.0"."""
        self._require_open("capability")
        major, minor = self._heap.ask(lambda gpu: gpu.compute_capability)
        return f"{major}.{minor}"

    @property
    def gpu_name(self) -> str:
        """The GPU's product name."""
        self._require_open("gpu_name")
        return self._heap.ask(lambda gpu: gpu.name)

    def close(self) -> None:
        self.require_host_thread("close")
        was_closed = self._is_closed
        try:
            super().close()
        finally:
            if not was_closed:
                self._heap.close(self._close_timeout_s)

    def open_to(self, other: CudaDevice) -> bool:
        """Let the GPU of `other` write this GPU's buffers; False where they have no direct link."""
        if not (other._heap.can_access(self.ordinal) and self._heap.can_access(other.ordinal)):
            return False
        self._heap.grant(other.ordinal)
        return True

    def is_peer_of(self, other: object) -> bool:
        """Whether `other` is a CudaDevice of the same CUDA."""
        return isinstance(other, CudaDevice) and other.core is self.core

    def capture_on(self, lane: CudaLane, launches: Sequence[KeptLaunch]) -> CapturedGraph:
        """Capture the launches into a CUDA graph, on the lane's thread."""
        return lane.call(partial(self._capture, launches))

    def capture_in_work(self, work: Callable[[], None], label: str) -> CapturedGraph:
        """Capture `work`, which only enqueues, on the stream of the running work. It is not run."""
        return self._capture([KeptLaunch(Enqueue(work), (), (), label)])

    def between_captures(self) -> AbstractContextManager[object]:
        """While it is entered no stream of any GPU captures a graph; for calls that a capture of
        another thread might not survive, such as a library's first ones. From any thread."""
        return self._heap.capture_lock

    def _capture(self, launches: Sequence[KeptLaunch]) -> CapturedGraph:
        with self._heap.capture_lock:
            gpu_graph = build(launches)
        graph = CapturedGraph(gpu_graph, launches)
        finalize(graph, self._heap.retire, gpu_graph.close).atexit = False
        return graph

    def _allocate(
        self, call: str, name: str, shape: Sequence[int], dtype: npt.DTypeLike, is_pinned: bool
    ) -> CudaBuffer:
        self.require_host_thread(call)
        self.refuse_in_capture(call)
        self._require_open(call)
        return self._heap.allocate(name, shape, dtype, is_pinned=is_pinned)

    def _open_lane(self, name: str, cores: Sequence[int] | None) -> CudaLane:
        lane = CudaLane(super()._open_lane(name, cores), self.name)
        lane.open(partial(self._create_gpu_stream, name))
        return lane

    def _create_gpu_stream(self, name: str) -> GpuStream:
        """On the thread that will own the stream."""
        with cuda_call(f"opening {self.name}", "nvidia-smi -L lists the GPUs"):
            gpu: Gpu = self.core.Device(self.ordinal)
            gpu.set_current()
        options = self._options.get(name, CudaStreamOptions())
        with cuda_call(f"creating stream {name!r} on {self.name}"):
            settings = self.core.StreamOptions(
                nonblocking=True,
                priority=self.core.greatest_priority() if options.is_urgent else None,
            )
            if options.sm_share is None:
                return gpu.create_stream(options=settings)
            context = self._partitions.context(gpu, name, options.sm_share)
            return context.create_stream(settings)


class CudaStream(QueuedStream):
    """A host thread with a CUDA stream. See `api.Stream`."""

    device: CudaDevice

    def __init__(self, device: CudaDevice, lane: CudaLane) -> None:
        super().__init__(device, lane)
        self._cuda_lane = lane

    @property
    def handle(self) -> int:
        """The ``CUstream``, for libraries that must be told their stream beforehand."""
        return self._cuda_lane.handle

    def call(self, make: Callable[[], T]) -> T:
        """Run `make` on the stream's thread after what was launched; return what it returns.

        For what an engine has to do on its own thread and the host has to wait for, such as
        loading. The thread's GPU is set. Raises what `make` raises, or the stream's failure, or
        DeviceError during a capture.
        """
        self._enter("call")
        self.device.refuse_in_capture("call")
        self._tail = None
        return self._cuda_lane.call(make)

    def launch(
        self,
        work: Callable[[], None],
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        if isinstance(work, Enqueue):
            label = label or work_name(work.work)
            if (capture := self._enter("launch")) is not None:
                capture.calls.append(KeptLaunch(work, tuple(reads), tuple(writes), label))
                return
        super().launch(work, reads=reads, writes=writes, label=label)

    def record(self, event: Event | None = None) -> QueuedEvent:
        if not isinstance(event, QueuedEvent) or not self._is_of_another_gpu(event):
            return super().record(event)
        if (capture := self._enter("record")) is not None:
            capture.calls.append(lambda stream: stream.record(event))
            capture.events.add(event)
        else:
            self._tail = event.mark = self._put_mark(event.name, None)
        return event

    def wait(self, event: Event) -> None:
        if not isinstance(event, QueuedEvent) or not self._is_of_another_gpu(event):
            super().wait(event)
        elif (capture := self._enter("wait")) is not None:
            capture.calls.append(lambda stream: stream.wait(event))
        else:
            _refuse_captured(self, event)
            if event.mark is not None:
                self._tail = None
                self._lane.put(WaitFor(event.mark))

    def end_capture(self) -> QueuedGraph:
        capture = self._enter("end_capture")
        graph = super().end_capture()
        if capture is None or not any(isinstance(call, KeptLaunch) for call in capture.calls):
            return graph
        calls: list[Callable[[Any], object]] = []
        for is_kept, group in groupby(capture.calls, lambda call: isinstance(call, KeptLaunch)):
            if is_kept:
                launches = cast("list[KeptLaunch]", list(group))
                captured = self.device.capture_on(self._cuda_lane, launches)
                calls.append(partial(CudaStream.replay, graph=captured))
            else:
                calls.extend(group)
        return QueuedGraph(self.device, calls)

    def replay(self, graph: CapturedGraph) -> None:
        """Append what the graph was captured from; during a capture, into that one."""
        if self._enter("launch") is not None:
            for kept in graph.launches:
                kept(self)
            return
        checker = self.device.checker
        if checker is not None:
            for kept in graph.launches:
                checker.launch(self._actor, kept.label, kept.reads, kept.writes)
        self._tail = None
        self._lane.put(Launch(graph.enqueue, graph.label))

    def _put_mark(self, event: str, clock: Clock | None) -> Mark:
        mark = CudaMark(self._lane, event, clock)
        self._lane.put(mark)
        return mark

    def _is_of_another_gpu(self, event: QueuedEvent) -> bool:
        return event.device is not self.device and self.device.is_peer_of(event.device)


@cache
def load_cuda() -> CudaCore:
    """cuda.core as the device needs it, one for all devices: so they know each other as peers.

    Raises MissingDependencyError where it is not installed.
    """
    try:
        import cuda.core as core
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingDependencyError("cuda-core", "cuda", "a CUDA device") from error
    return cast("CudaCore", CoreAndDriver(core, driver))


def _refuse_captured(stream: CudaStream, event: QueuedEvent) -> None:
    capture = event.device.capture
    if capture is not None and event in capture.events:
        raise DeviceError(
            f"stream {stream.name!r} waits for {event.name!r}, which stream "
            f"{capture.stream.name!r} is capturing; wait for it after launching the graph"
        )
