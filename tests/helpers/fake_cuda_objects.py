"""What the simulated CUDA of `fake_cuda` hands out: the classes of `cuda_api`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.helpers.fake_cuda import FakeCuda

GREATEST_PRIORITY = -5
_FRESH, _FREED = 0xCD, 0xDD


class FakeCudaError(Exception):
    """A CUresult other than success."""


@dataclass(slots=True, eq=False)
class Op:
    """What one call enqueued."""

    run: Callable[[], None] | None
    buffers: tuple[FakeBuffer, ...] = ()
    blocker: Op | None = None
    graph: FakeGraph | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class FakeDevice:
    cuda: FakeCuda
    device_id: int

    @property
    def resources(self) -> FakeResources:
        return FakeResources(self.cuda)

    @property
    def compute_capability(self) -> tuple[int, int]:
        return self.cuda.capability

    @property
    def name(self) -> str:
        return "Simulated GPU"

    def set_current(self) -> None:
        with self.cuda.entered("set_current", self.device_id):
            self.cuda.current = self.device_id

    def sync(self) -> None:
        with self.cuda.entered("Device.sync", self.device_id, gpu=self.device_id):
            self.cuda.refuse_captures_of(self.device_id, "Device.sync")
            own = [stream for stream in self.cuda.streams if stream.ordinal == self.device_id]
            self.cuda.run_until(lambda: not any(stream.queue for stream in own))

    def can_access_peer(self, peer: int) -> bool:
        return self.cuda.has_link and 0 <= peer < self.cuda.num_gpus

    def create_stream(self, obj: None = None, options: Any = None) -> FakeStream:
        assert obj is None
        with self.cuda.entered("create_stream", self.device_id, detail=options, gpu=self.device_id):
            return FakeStream(self.cuda, self.device_id, options)

    def create_context(self, options: Any = None) -> FakeContext:
        with self.cuda.entered("create_context", self.device_id, detail=options):
            [sms] = options.resources
            return FakeContext(self.cuda, self.device_id, sms)


@dataclass(frozen=True, slots=True)
class FakeContext:
    cuda: FakeCuda
    ordinal: int
    sms: FakeSms

    def create_stream(self, options: Any = None) -> FakeStream:
        with self.cuda.entered("create_stream", self.ordinal, detail=options, gpu=self.ordinal):
            return FakeStream(self.cuda, self.ordinal, options, self.sms)


@dataclass(frozen=True, slots=True)
class FakeResources:
    cuda: FakeCuda

    @property
    def sm(self) -> FakeSms:
        if not self.cuda.has_partitions:
            raise RuntimeError("green contexts need a newer driver")
        return FakeSms(range(self.cuda.num_sms))


@dataclass(frozen=True, slots=True)
class FakeSms:
    numbers: range
    min_partition_size: int = 8
    coscheduled_alignment: int = 8

    @property
    def sm_count(self) -> int:
        return len(self.numbers)

    def split(self, options: Any) -> tuple[list[FakeSms], FakeSms]:
        if options.count % self.coscheduled_alignment or not 0 < options.count < self.sm_count:
            raise FakeCudaError(f"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: {options.count}")
        first = FakeSms(self.numbers[: options.count])
        return [first], FakeSms(self.numbers[options.count :])


class FakeStream:
    def __init__(
        self, cuda: FakeCuda, ordinal: int, options: Any, sms: FakeSms | None = None
    ) -> None:
        priority = options.priority or 0
        if not GREATEST_PRIORITY <= priority <= 0:
            raise ValueError(f"priority={priority} is out of range [{GREATEST_PRIORITY}, 0]")
        self.cuda = cuda
        self.ordinal = ordinal
        self.options = options
        self.sms = sms
        self._handle = cuda.next_handle()
        self.queue: deque[Op] = deque()
        self.builder: FakeGraphBuilder | None = None
        self.is_closed = False
        cuda.streams.append(self)

    @property
    def handle(self) -> int:
        return self._handle

    def submit(self, op: Op) -> Op:
        """Append to the stream, or to the graph that it captures."""
        for buffer in op.buffers:
            buffer.require_access(self.ordinal)
        if self.builder is not None:
            self.builder.ops.append(op)
        else:
            self.queue.append(op)
            self.cuda.go_on()
        return op

    def record(self, event: None = None) -> FakeEvent:
        assert event is None
        with self._entered("record") as detail:
            if self.builder is not None:
                self.cuda.misuse("record during a capture: the event would be of the graph only")
            made = FakeEvent(self.cuda, self.submit(Op(None)))
            detail.append(made.handle)
            return made

    def wait(self, event_or_stream: FakeEvent) -> None:
        with self._entered("wait", event_or_stream.handle):
            if self.builder is not None:
                raise FakeCudaError("CUDA_ERROR_STREAM_CAPTURE_ISOLATION: an event from outside")
            self.submit(Op(None, blocker=event_or_stream.op))

    def sync(self) -> None:
        with self._entered("sync"):
            if self.builder is not None:
                self.builder.is_invalidated = True
                raise FakeCudaError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: sync. Not here.")
            self.cuda.run_until(lambda: not self.queue)

    def close(self) -> None:
        with self._entered("close"):
            if self.queue and self.cuda.fault is None:
                self.cuda.misuse("a stream was destroyed before its work was done")
            self.is_closed = True
            self.cuda.streams.remove(self)

    def create_graph_builder(self) -> FakeGraphBuilder:
        with self._entered("create_graph_builder"):
            return FakeGraphBuilder(self)

    @contextmanager
    def _entered(self, call: str, *detail: object) -> Iterator[list[object]]:
        kept = list(detail)
        with self.cuda.entered(
            call, self.handle, detail=kept, gpu=self.ordinal, is_closed=self.is_closed
        ):
            yield kept


class FakeEvent:
    def __init__(self, cuda: FakeCuda, op: Op) -> None:
        self.cuda = cuda
        self.op = op
        self.handle = cuda.next_handle()

    @property
    def is_done(self) -> bool:
        with self.cuda.entered("is_done", self.handle, is_unsafe=True):
            done = self.op.is_done
            if self.cuda.is_lazy and not done:
                self.cuda.step()
            self.cuda.go_on()
            if self.cuda.fault is not None:
                raise self.cuda.fault
            return done


@dataclass(slots=True, eq=False)
class FakeGraphBuilder:
    stream: FakeStream
    ops: list[Op] = field(default_factory=list)
    thread: int = 0
    is_invalidated: bool = False
    is_building: bool = False

    def begin_building(self, mode: str = "relaxed") -> FakeGraphBuilder:
        stream = self.stream
        with stream.cuda.entered("begin_building", stream.handle, detail=mode, gpu=stream.ordinal):
            self.thread = threading.get_ident()
            self.is_building = True
            stream.builder = self
        return self

    def end_building(self) -> FakeGraphBuilder:
        with self.stream.cuda.entered("end_building", self.stream.handle):
            if self.is_invalidated:
                raise RuntimeError("the build was invalidated and must be ended")
            self.is_building = False
            self.stream.builder = None
        return self

    def complete(self) -> FakeGraph:
        return FakeGraph(self.stream.cuda, self.ops)

    def close(self) -> None:
        if self.is_building:
            self.stream.builder = None
            if self.is_invalidated:
                raise FakeCudaError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: it was")
            self.is_building = False

    def __del__(self) -> None:
        """Like the real one, which does not know that a close that failed has ended it too."""
        if self.is_building and self.stream.builder is not None:
            self.stream.cuda.misuses.append("a dead builder ended the capture of another")


class FakeGraph:
    def __init__(self, cuda: FakeCuda, ops: list[Op]) -> None:
        self.cuda = cuda
        self.ops = ops
        self.is_closed = False

    def launch(self, stream: FakeStream) -> None:
        with self.cuda.entered(
            "Graph.launch", stream.handle, gpu=stream.ordinal, is_closed=self.is_closed
        ):
            for op in self.ops:
                stream.submit(Op(op.run, op.buffers, graph=self))

    def close(self) -> None:
        with self.cuda.entered("close", is_unsafe=True, is_closed=self.is_closed):
            if any(op.graph is self for stream in self.cuda.streams for op in stream.queue):
                self.cuda.misuse("a graph was destroyed while it ran")
            self.is_closed = True


class FakePool:
    """Of a GPU, or of page-locked host memory where `ordinal` is None."""

    def __init__(self, cuda: FakeCuda, ordinal: int | None) -> None:
        self.cuda = cuda
        self.ordinal = ordinal
        self.peers = {ordinal}

    @property
    def peer_accessible_by(self) -> FakePool:
        return self

    def add(self, value: int) -> None:
        with self.cuda.entered("peer_accessible_by.add", value, detail=self.ordinal):
            if not self.cuda.has_link:
                raise ValueError(f"device {self.ordinal} cannot be accessed by {value}")
            self.peers.add(value)

    def allocate(self, size: int, *, stream: FakeStream) -> FakeBuffer:
        with self.cuda.entered("allocate", stream.handle, gpu=stream.ordinal, is_unsafe=True):
            if size >= 2**64:
                raise OverflowError("Python int too large to convert to C size_t")
            if size > self.cuda.memory_free[stream.ordinal]:
                raise FakeCudaError("CUDA_ERROR_OUT_OF_MEMORY: not enough memory. See docs.")
            return FakeBuffer(self, size, stream.ordinal)


class FakeBuffer:
    def __init__(self, pool: FakePool, size: int, ordinal: int) -> None:
        block = np.full(size + 256, _FRESH, np.uint8)
        start = -block.ctypes.data % 256
        self.bytes = block[start : start + size]
        self.pool = pool
        self.size = size
        self.is_closed = False
        self._ordinal = ordinal
        pool.cuda.memory_free[ordinal] -= size
        pool.cuda.buffers.append(self)

    @property
    def handle(self) -> int:
        return int(self.bytes.ctypes.data)

    def require_access(self, ordinal: int) -> None:
        if self.is_closed:
            self.pool.cuda.misuse("freed memory was used")
        if self.pool.ordinal is not None and ordinal not in self.pool.peers:
            raise FakeCudaError(f"CUDA_ERROR_INVALID_VALUE: GPU {ordinal} has no access. See docs.")

    def copy_to(self, dst: FakeBuffer, *, stream: FakeStream) -> FakeBuffer:
        with self.pool.cuda.entered("copy_to", stream.handle, gpu=stream.ordinal):
            if self.size != dst.size:
                raise ValueError("buffer sizes mismatch between src and dst")
            source, target = self.bytes, dst.bytes
            stream.submit(Op(lambda: np.copyto(target, source), (self, dst)))
        return dst

    def fill(self, value: int, *, stream: FakeStream) -> None:
        with self.pool.cuda.entered("fill", stream.handle, gpu=stream.ordinal):
            target = self.bytes
            stream.submit(Op(lambda: target.fill(value), (self,)))

    def close(self, stream: FakeStream | None = None) -> None:
        cuda = self.pool.cuda
        subject = 0 if stream is None else stream.handle
        with cuda.entered(
            "close", subject, gpu=self._ordinal, is_unsafe=True, is_closed=self.is_closed
        ):
            pending = [op for each in cuda.streams for op in each.queue if op.run is not None]
            if any(self in op.buffers for op in pending):
                cuda.misuse("memory was freed while the GPU still used it")
            self.is_closed = True
            cuda.buffers.remove(self)
            self.bytes.fill(_FREED)
            cuda.memory_free[self._ordinal] += self.size
