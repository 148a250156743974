"""What both host devices share: every call except the running of work.

Streams check their calls, keep them while they capture, ask the order checker, and put steps into
their lane. The device adds the lanes.

    stream state   launch, record, wait   begin_capture   end_capture   sync     close
    open           -> lane                -> capturing    DeviceError   blocks   -> closed
    capturing      -> graph               DeviceError     -> open       DeviceError   -> closed
    closed         DeviceError            DeviceError     DeviceError   DeviceError   nothing

While one stream captures, the others go on launching; sync, is_done and allocate are refused for
the whole device, as CUDA does, and so is waiting for an event of the capture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

import numpy.typing as npt

from engines.errors import DeviceError
from runtime.device.api import Access, Event, Stream
from runtime.device.lane import HOST, Clock, Lane, Launch, Mark, WaitFor, work_name
from runtime.device.memory import HostBuffer
from runtime.device.order import OrderChecker


@dataclass(slots=True)
class _Capture:
    """The calls one stream has kept so far, and the events it would record."""

    stream: QueuedStream
    calls: list[Callable[[Stream], object]] = field(default_factory=list)
    events: set[QueuedEvent] = field(default_factory=set)


class QueuedDevice(ABC):
    """Base of the host devices; a subclass opens lanes."""

    def __init__(self, name: str, *, check: bool) -> None:
        self.name = name
        self.checker = OrderChecker() if check else None
        self.capture: _Capture | None = None
        self._streams: dict[str, QueuedStream] = {}
        self._is_closed = False
        self._event_numbers = count(1)

    @abstractmethod
    def _open_lane(self, name: str, cores: Sequence[int] | None) -> Lane:
        """A new lane, running."""

    @abstractmethod
    def _is_inside_work(self) -> bool:
        """Whether the calling thread is running work at the moment."""

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> QueuedStream:
        self.require_host_thread("create_stream")
        self._require_open("create_stream")
        if name in self._streams or name == HOST:
            raise DeviceError(
                f"device {self.name!r} has {name!r} already; close that stream or choose another "
                "name"
            )
        stream = QueuedStream(self, self._open_lane(name, cores))
        self._streams[name] = stream
        return stream

    def create_event(self, name: str = "") -> QueuedEvent:
        return QueuedEvent(self, name or f"event {next(self._event_numbers)}")

    def allocate(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> HostBuffer:
        self.require_host_thread("allocate")
        self.refuse_in_capture("allocate")
        self._require_open("allocate")
        return HostBuffer(name, shape, dtype)

    def host_access(
        self,
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        self.require_host_thread("host_access")
        if self.checker is not None:
            self.checker.host_access(label or "host access", reads, writes)

    def close(self) -> None:
        self.require_host_thread("close")
        self._is_closed = True
        with ExitStack() as all_even_if_one_raises:
            for stream in self._streams.values():
                all_even_if_one_raises.callback(stream.close)

    def forget(self, stream: QueuedStream) -> None:
        """Free the name of a closed stream, and its capture."""
        del self._streams[stream.name]
        if self.capture is not None and self.capture.stream is stream:
            self.capture = None

    def require_host_thread(self, call: str) -> None:
        if self._is_inside_work():
            raise DeviceError(
                f"{call} was called inside work of device {self.name!r}; work must not call the "
                "device: launch from the host thread and order it with events"
            )

    def refuse_in_capture(self, call: str) -> None:
        if self.capture is not None:
            raise DeviceError(
                f"{call} is not allowed while stream {self.capture.stream.name!r} captures; "
                "call it before begin_capture or after end_capture"
            )

    def _require_open(self, call: str) -> None:
        if self._is_closed:
            raise DeviceError(f"{call}: device {self.name!r} is closed; create a new one")


class QueuedEvent:
    """A name and the mark last recorded. See `api.Event`."""

    __slots__ = ("device", "mark", "name")

    def __init__(self, device: QueuedDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.mark: Mark | None = None

    @property
    def is_done(self) -> bool:
        self.device.require_host_thread("is_done")
        self.device.refuse_in_capture("is_done")
        if self.mark is None:
            return True
        if not self.mark.lane.poll(self.mark):
            return False
        if self.device.checker is not None:
            self.device.checker.sync(self.mark)
        return True

    def sync(self, timeout_s: float | None = None) -> bool:
        self.device.require_host_thread("sync")
        self.device.refuse_in_capture("sync")
        return self.mark is None or _block_until(self.device, self.mark, timeout_s)


class QueuedStream:
    """A lane and the rules for calling it. See `api.Stream`."""

    def __init__(self, device: QueuedDevice, lane: Lane) -> None:
        self.name = lane.name
        self.device = device
        self._lane = lane
        self._actor = 0 if device.checker is None else device.checker.add_stream(lane.name)
        self._tail: Mark | None = None  # the last step, if it is a mark
        self._is_closed = False

    def launch(
        self,
        work: Callable[[], None],
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        if (capture := self._enter("launch")) is not None:
            kept_reads, kept_writes = tuple(reads), tuple(writes)
            capture.calls.append(
                lambda stream: stream.launch(
                    work, reads=kept_reads, writes=kept_writes, label=label
                )
            )
            return
        if self.device.checker is not None:
            self.device.checker.launch(self._actor, label or work_name(work), reads, writes)
        self._tail = None
        self._lane.put(Launch(work, label))

    def record(self, event: Event | None = None) -> QueuedEvent:
        own = self.device.create_event() if event is None else self._own(event)
        if (capture := self._enter("record")) is not None:
            capture.calls.append(lambda stream: stream.record(own))
            capture.events.add(own)
            return own
        checker = self.device.checker
        clock = None if checker is None else checker.record(self._actor, own.name)
        self._tail = own.mark = self._put_mark(own.name, clock)
        return own

    def wait(self, event: Event) -> None:
        own = self._own(event)
        if (capture := self._enter("wait")) is not None:
            capture.calls.append(lambda stream: stream.wait(own))
            return
        capture = self.device.capture
        if capture is not None and own in capture.events:
            raise DeviceError(
                f"stream {self.name!r} waits for {own.name!r}, which stream "
                f"{capture.stream.name!r} is capturing; wait for it after launching the graph"
            )
        if own.mark is None:
            return
        if self.device.checker is not None:
            self.device.checker.wait(self._actor, own.mark)
        self._tail = None
        self._lane.put(WaitFor(own.mark))

    def sync(self) -> None:
        self._enter("sync")
        self.device.refuse_in_capture("sync")
        if self._tail is None:
            checker = self.device.checker
            clock = None if checker is None else checker.clock(self._actor)
            self._tail = self._put_mark("its last work", clock)
        _block_until(self.device, self._tail)

    def begin_capture(self) -> None:
        self._enter("begin_capture")
        self.device.refuse_in_capture("begin_capture")
        self.device.capture = _Capture(self)

    def end_capture(self) -> QueuedGraph:
        if (capture := self._enter("end_capture")) is None:
            raise DeviceError(
                f"end_capture: stream {self.name!r} is not capturing; call begin_capture first"
            )
        self.device.capture = None
        return QueuedGraph(self.device, capture.calls)

    def close(self) -> None:
        self.device.require_host_thread("close")
        if self._is_closed:
            return
        self._is_closed = True
        self.device.forget(self)
        self._lane.close()
        if self.device.checker is not None:
            self.device.checker.join(self._actor)

    def _put_mark(self, event: str, clock: Clock | None) -> Mark:
        mark = Mark(self._lane, event, clock)
        # Before anybody can wait for it: if ctrl-C came in between, the wait would never end.
        self._lane.put(mark)
        return mark

    def _enter(self, call: str) -> _Capture | None:
        """Refuse what no state allows; return the capture that is to keep the call."""
        self.device.require_host_thread(call)
        if self._is_closed:
            raise DeviceError(f"{call}: stream {self.name!r} is closed; create a new one")
        capture = self.device.capture
        return capture if capture is not None and capture.stream is self else None

    def _own(self, event: Event) -> QueuedEvent:
        if not isinstance(event, QueuedEvent) or event.device is not self.device:
            raise DeviceError(
                f"stream {self.name!r} of device {self.device.name!r} was given an event of "
                "another device; create it with this device"
            )
        return event


class QueuedGraph:
    """The calls of a capture. See `api.Graph`."""

    def __init__(self, device: QueuedDevice, calls: Sequence[Callable[[Stream], object]]) -> None:
        self._device = device
        self._calls = tuple(calls)

    def launch(self, stream: Stream) -> None:
        if not isinstance(stream, QueuedStream) or stream.device is not self._device:
            raise DeviceError(
                f"a graph captured on device {self._device.name!r} was launched on stream "
                f"{stream.name!r} of another device; capture it there"
            )
        for call in self._calls:
            call(stream)


def _block_until(device: QueuedDevice, mark: Mark, timeout_s: float | None = None) -> bool:
    """Block the host until the mark is reached and raise the failure of its lane; False where it
    was not reached in time."""
    if not mark.lane.block_until(mark, timeout_s):
        return False
    # Also after a failure: everything before the mark has been run or skipped.
    if device.checker is not None:
        device.checker.sync(mark)
    if mark.failure is not None:
        mark.failure.surface()
    return True
