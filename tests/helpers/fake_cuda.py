"""A CUDA that is simulated: the names of `cuda_api`, streams as queues, memory as numpy.

What a real GPU does at some time, this one does when its order says so: `EAGER` at once, `LAZY`
only when somebody looks or waits, a `random.Random` in between, in any order that the events allow.
A stream can be held, as by a kernel that takes for ever. Like CUDA it has a current GPU for each
thread, sticky faults, and captures that forbidden calls invalidate.

What CUDA would answer with undefined behaviour (a freed buffer in use, a call after close, a
thread without its GPU) raises `MisuseError` and is also kept in `misuses`: tests find that empty.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.helpers.fake_cuda_objects import (
    GREATEST_PRIORITY,
    FakeBuffer,
    FakeCudaError,
    FakeDevice,
    FakePool,
    FakeSms,
    FakeStream,
    Op,
)

EAGER = "eager"
LAZY = "lazy"
# Only a broken test waits this long; it then fails instead of hanging.
_PATIENCE_S = 30.0


class MisuseError(AssertionError):
    """A call whose effect CUDA does not define."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was made. `subject` is the handle or ordinal of what it was made on."""

    thread: str
    name: str
    subject: int
    detail: object = None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    nonblocking: bool
    priority: int | None


@dataclass(frozen=True, slots=True)
class DeviceMemoryResourceOptions:
    pass


@dataclass(frozen=True, slots=True)
class ContextOptions:
    resources: Sequence[FakeSms]


@dataclass(frozen=True, slots=True)
class SMResourceOptions:
    count: int


class FakeCuda:
    """See `cuda_api.CudaCore`; `kernel`, `hold`, `fail` and what is set here are for tests.

    `with_calls` keeps every call in `calls`.
    """

    def __init__(
        self,
        order: str | random.Random = EAGER,
        *,
        num_gpus: int = 1,
        memory_bytes: int = 2**30,
        num_sms: int = 132,
        capability: tuple[int, int] = (9, 0),
        has_link: bool = True,
        has_partitions: bool = True,
        with_calls: bool = False,
    ) -> None:
        self.order = order
        self.num_gpus = num_gpus
        self.memory_bytes = memory_bytes
        self.memory_free = [memory_bytes] * num_gpus
        self.buffers: list[FakeBuffer] = []
        self.num_sms = num_sms
        self.capability = capability
        self.has_link = has_link
        self.has_partitions = has_partitions
        self.fault: FakeCudaError | None = None
        self.calls: list[Call] | None = [] if with_calls else None
        self.misuses: list[str] = []
        self.streams: list[FakeStream] = []
        self.turn = threading.Condition(threading.RLock())
        self._thread = threading.local()
        self._failures: dict[str, str] = {}
        self._held: set[int] = set()
        self._num_handles = 0

    # --- the names of cuda.core ---------------------------------------------------------------

    def Device(self, device_id: int) -> FakeDevice:  # noqa: N802 - the name in cuda.core
        if not 0 <= device_id < self.num_gpus:
            raise FakeCudaError("CUDA_ERROR_INVALID_DEVICE: the ordinal is out of range. See docs.")
        return FakeDevice(self, device_id)

    def DeviceMemoryResource(  # noqa: N802
        self, device_id: int, options: DeviceMemoryResourceOptions | None = None
    ) -> FakePool:
        assert options is not None, "without options it is the pool that all libraries share"
        with self.entered("DeviceMemoryResource", device_id, gpu=device_id):
            return FakePool(self, device_id)

    def LegacyPinnedMemoryResource(self) -> FakePool:  # noqa: N802
        return FakePool(self, None)

    def StreamOptions(  # noqa: N802
        self, nonblocking: bool = True, priority: int | None = None
    ) -> StreamOptions:
        return StreamOptions(nonblocking, priority)

    def DeviceMemoryResourceOptions(self) -> DeviceMemoryResourceOptions:  # noqa: N802
        return DeviceMemoryResourceOptions()

    def ContextOptions(self, resources: Sequence[FakeSms]) -> ContextOptions:  # noqa: N802
        return ContextOptions(resources)

    def SMResourceOptions(self, count: int) -> SMResourceOptions:  # noqa: N802
        return SMResourceOptions(count)

    def greatest_priority(self) -> int:
        with self.entered("greatest_priority", gpu=self.current):
            return GREATEST_PRIORITY

    def free_memory(self, ordinal: int) -> tuple[int, int]:
        with self.entered("free_memory", ordinal):
            self.Device(ordinal).set_current()
            return self.memory_free[ordinal], self.memory_bytes

    def copy(self, source: int, target: int, num_bytes: int, stream: int) -> None:
        self.copy_2d(
            source,
            target,
            width=num_bytes,
            height=1,
            source_pitch=num_bytes,
            target_pitch=num_bytes,
            stream=stream,
        )

    def copy_2d(
        self,
        source: int,
        target: int,
        *,
        width: int,
        height: int,
        source_pitch: int,
        target_pitch: int,
        stream: int,
    ) -> None:
        own = self.stream_of(stream)
        with self.entered("copy_2d", stream, gpu=own.ordinal):
            if width > min(source_pitch, target_pitch):
                raise FakeCudaError("CUDA_ERROR_INVALID_VALUE: a piece is wider than its pitch.")
            spans = [(height - 1) * pitch + width for pitch in (source_pitch, target_pitch)]
            if source < target + spans[1] and target < source + spans[0]:
                self.misuse("a copy between addresses that overlap")

            def run() -> None:
                for row in range(height):
                    ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

            buffers = (self.buffer_at(source, spans[0]), self.buffer_at(target, spans[1]))
            own.submit(Op(run, buffers))

    def fill(self, address: int, value: int, num_bytes: int, stream: int) -> None:
        own = self.stream_of(stream)
        with self.entered("fill", stream, gpu=own.ordinal):
            buffer = self.buffer_at(address, num_bytes)
            own.submit(Op(lambda: ctypes.memset(address, value, num_bytes), (buffer,)))

    def is_capturing(self, stream: int) -> bool:
        with self.entered("is_capturing", stream):
            return self.stream_of(stream).builder is not None

    # --- for tests ----------------------------------------------------------------------------

    def stream_of(self, handle: int) -> FakeStream:
        """The open stream that has this handle."""
        found = next((each for each in self.streams if each.handle == handle), None)
        if found is None:
            self.misuse(f"no open stream has the handle {handle:#x}")
        return found

    def buffer_at(self, address: int, num_bytes: int) -> FakeBuffer:
        """The live buffer that holds all of these bytes."""
        for buffer in self.buffers:
            start = buffer.handle
            if start <= address and address + num_bytes <= start + buffer.size:
                return buffer
        self.misuse(f"{num_bytes} bytes at {address:#x} lie in no buffer")

    def is_capturing_anywhere(self) -> bool:
        return any(stream.builder is not None for stream in self.streams)

    def kernel(self, stream: Any, run: Callable[[], None], *buffers: Any) -> None:
        """Enqueue `run`, as a kernel that touches the raw `buffers`."""
        with self.entered("kernel", stream.handle, gpu=stream.ordinal):
            stream.submit(Op(run, buffers))

    def hold(self, handle: int) -> None:
        """Let nothing run on the stream from now on."""
        with self.turn:
            self._held.add(handle)

    def release(self, handle: int) -> None:
        with self.turn:
            self._held.discard(handle)
            self.go_on()

    def fail(self, call: str, message: str) -> None:
        """Let the next call of this name (``"FakeStream.record"`` is ``"record"``) fail."""
        self._failures[call] = message

    def calls_of(self, *names: str) -> list[Call]:
        assert self.calls is not None
        return [call for call in self.calls if call.name in names]

    # --- the simulation -----------------------------------------------------------------------

    @property
    def is_lazy(self) -> bool:
        return self.order == LAZY

    @property
    def current(self) -> int | None:
        """The calling thread's GPU."""
        return getattr(self._thread, "ordinal", None)

    @current.setter
    def current(self, ordinal: int) -> None:
        self._thread.ordinal = ordinal

    def next_handle(self) -> int:
        self._num_handles += 1
        return 0x1000 + self._num_handles

    @contextmanager
    def entered(
        self,
        call: str,
        subject: int = 0,
        *,
        detail: object = None,
        gpu: int | None = -1,
        is_closed: bool = False,
        is_unsafe: bool = False,
    ) -> Iterator[None]:
        """Every call goes through here. `gpu` -1: any thread may make the call.

        `is_unsafe`: a thread that captures must not make it.
        """
        with self.turn:
            if self.calls is not None:
                self.calls.append(Call(threading.current_thread().name, call, subject, detail))
            if is_closed:
                self.misuse(f"{call} after close")
            if gpu != -1 and (gpu is None or self.current != gpu):
                self.misuse(f"{call} for GPU {gpu} in a thread whose GPU is {self.current}")
            if call in self._failures:
                raise FakeCudaError(self._failures.pop(call))
            if is_unsafe:
                self._refuse_in_capture(call, threading.get_ident())
            if self.fault is not None and call != "close":
                raise self.fault
            yield

    def misuse(self, message: str) -> NoReturn:
        self.misuses.append(message)
        raise MisuseError(message)

    def refuse_captures_of(self, ordinal: int, call: str) -> None:
        """For calls that involve all streams of a GPU."""
        self._refuse_in_capture(call, None, ordinal)

    def _refuse_in_capture(self, call: str, thread: int | None, ordinal: int | None = None) -> None:
        for stream in self.streams:
            builder = stream.builder
            if builder is not None and (builder.thread == thread or stream.ordinal == ordinal):
                builder.is_invalidated = True
                raise FakeCudaError(f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {call}. Not here.")

    def go_on(self) -> None:
        """Let the GPU do what its order wants to do now."""
        while self.order == EAGER or (
            isinstance(self.order, random.Random) and self.order.random() < 0.5
        ):
            if not self.step():
                break
        self.turn.notify_all()

    def step(self) -> bool:
        """Run one operation of a stream that can; False when none can."""
        ready = [
            stream
            for stream in self.streams
            if stream.queue
            and stream.handle not in self._held
            and (stream.queue[0].blocker is None or stream.queue[0].blocker.is_done)
        ]
        if not ready:
            return False
        index = self.order.randrange(len(ready)) if isinstance(self.order, random.Random) else 0
        op = ready[index].queue[0]
        try:
            if op.run is not None and self.fault is None:
                op.run()
        except FakeCudaError as error:
            self.fault = error
        ready[index].queue.popleft()
        op.run, op.is_done = None, True
        return True

    def run_until(self, is_reached: Callable[[], bool]) -> None:
        """What a call that blocks does: others may hold streams and release them meanwhile."""
        while not is_reached():
            if not self.step() and not self.turn.wait(_PATIENCE_S):
                self.misuse("a call blocks for ever")
        if self.fault is not None:
            raise self.fault
