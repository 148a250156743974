"""A CUDA stream as a lane: a host thread that owns a GPU stream and is all that enqueues on it.

    call        on the lane's thread                         on the GPU
    ----------  -------------------------------------------  -------------------------------------
    launch      runs the work                                runs what the work enqueued
    record      records a CUDA event of this mark's own      the event is done
    wait        sleeps until the other thread has recorded   waits for that event
    sync        -                                            the host looks until the event is done

So a mark is reached twice: first by the thread (`Mark.is_reached`: the CUDA event exists and may be
waited for), then by the GPU. No thread of a stream ever waits for the GPU. The host looks at the
event and sleeps in between, and does not block in CUDA, so that ctrl-C gets through and a GPU that
hangs holds nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import Generic, TypeVar

from engines.errors import DeviceError
from runtime.device.cuda_api import GpuEvent, GpuStream
from runtime.device.cuda_errors import cuda_call
from runtime.device.lane import Clock, Failure, Lane, Launch, Mark, Step, WaitFor

T = TypeVar("T")

# Between two looks at an event. An engine's step takes milliseconds, a look about a microsecond.
_LOOK_AGAIN_S = 50e-6

_thread = threading.local()


def current_stream() -> GpuStream:
    """The CUDA stream of the running work; enqueue on this one and on no other.

    Raises DeviceError outside the work of a CUDA stream.
    """
    stream: GpuStream | None = getattr(_thread, "stream", None)
    if stream is None:
        raise DeviceError(
            "current_stream was called outside work of a CUDA stream; call it in work that "
            "was given to launch"
        )
    return stream


class CudaMark(Mark):
    """A mark and the CUDA event behind it.

    `gpu_event` is None before the thread came there, after a failure, and again once the event
    was found done: then there is nothing left to wait for.
    """

    __slots__ = ("gpu_event",)

    def __init__(self, lane: Lane, event: str, clock: Clock | None) -> None:
        super().__init__(lane, event, clock)
        self.gpu_event: GpuEvent | None = None


class CudaLane:
    """See `lane.Lane`; `inner` is the lane with the thread, which this lane takes over."""

    def __init__(self, inner: Lane, device: str) -> None:
        self.name = inner.name
        self.handle = 0
        """The ``CUstream``, once the lane is open."""
        self._inner = inner
        self._place = f"stream {inner.name!r} of {device}"

    @property
    def failure(self) -> Failure | None:
        return self._inner.failure

    @failure.setter
    def failure(self, failure: Failure | None) -> None:
        self._inner.failure = failure

    def open(self, create_stream: Callable[[], GpuStream]) -> None:
        """Create the CUDA stream on the lane's thread, before anything else runs there.

        `create_stream` sets the thread's GPU first. Raises what it raises, and closes the lane.
        """
        try:
            self.handle = self.call(partial(_bind, create_stream))
        except BaseException:
            self.close()
            raise

    def put(self, step: Step) -> None:
        if isinstance(step, CudaMark):
            self._inner.put(Launch(partial(self._record, step), f"record {step.event!r}"))
        self._inner.put(step)
        if isinstance(step, WaitFor):
            mark = step.blocker
            self._inner.put(Launch(partial(self._wait, mark), f"wait for {mark.event!r}"))

    def poll(self, mark: Mark) -> bool:
        return self._inner.poll(mark) and self._is_done_on_gpu(mark)

    def block_until(self, mark: Mark, timeout_s: float | None = None) -> bool:
        deadline_s = inf if timeout_s is None else monotonic() + timeout_s
        if not self._inner.block_until(mark, timeout_s):
            return False
        while not self._is_done_on_gpu(mark):
            if monotonic() > deadline_s:
                return False
            sleep(_LOOK_AGAIN_S)
        return True

    def call(self, make: Callable[[], T], timeout_s: float | None = None) -> T:
        """Run `make` on the lane's thread, after what is queued there; return what it returns.

        Blocks the host until then, for `timeout_s` at most. What `make` raises is raised here and
        does not fail the lane. Raises the lane's failure if it has one, and DeviceError when the
        thread does not get there in time.
        """
        step = _Call(make)
        self._inner.put(step)
        try:
            return step.future.result(timeout_s)
        except TimeoutError:
            if step.future.done():  # `make` raised it
                raise
            raise DeviceError(f"{self._place} has not answered for {timeout_s:g} s") from None

    def close(self) -> None:
        self._inner.put(_Teardown())
        self._inner.close()

    def _record(self, mark: CudaMark) -> None:
        with cuda_call(f"recording {mark.event!r} on {self._place}"):
            mark.gpu_event = current_stream().record()

    def _wait(self, mark: Mark) -> None:
        event = mark.gpu_event if isinstance(mark, CudaMark) else None
        if event is not None:
            with cuda_call(f"letting {self._place} wait for {mark.event!r}"):
                current_stream().wait(event)

    def _is_done_on_gpu(self, mark: Mark) -> bool:
        """Whether the GPU has come to a mark that the thread has reached. By the host thread."""
        if not isinstance(mark, CudaMark) or mark.gpu_event is None:
            return True
        try:
            with cuda_call(f"work of {self._place} before {mark.event!r}"):
                if not mark.gpu_event.is_done:
                    return False
        except DeviceError as error:
            if self.failure is None:
                self.failure = Failure(self.name, "GPU work", error, error.__traceback__)
            mark.failure = mark.failure or self.failure
        mark.gpu_event = None
        return True


class _Call(Generic[T]):
    """A step whose result the host waits for."""

    blocker = None

    def __init__(self, make: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._make = make

    def run(self, lane: Lane) -> None:
        try:
            if lane.failure is not None:
                lane.failure.surface()
            self.future.set_result(self._make())
        except BaseException as error:  # the host waits: whatever it is, it must get there
            self.future.set_exception(error)

    def drop(self) -> None:
        self.future.set_exception(DeviceError("the stream was closed before the call"))


class _Teardown:
    """The last step: let the GPU finish what has begun, then destroy the CUDA stream.

    On the lane's thread, whose end the host awaits with a time limit: closing a stream whose GPU
    hangs fails like closing one whose work never ends.
    """

    blocker = None

    def run(self, lane: Lane) -> None:  # noqa: ARG002 - the signature of a Step
        self.drop()

    def drop(self) -> None:
        stream: GpuStream | None = getattr(_thread, "stream", None)
        if stream is None:
            return
        for call in (stream.sync, stream.close):
            with suppress(Exception):  # a lost context fails every call; close raises none
                call()
        _thread.stream = None


def _bind(create_stream: Callable[[], GpuStream]) -> int:
    _thread.stream = create_stream()
    return int(current_stream().handle)
