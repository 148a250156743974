"""The device layer: streams, events, buffers and graphs, with one meaning on every device.

The round loop is written once against these protocols. `host.HostDevice` runs them with one
thread a stream, `seeded.SeededDevice` in one thread in an order that a test steers, and a CUDA
device with real streams. One contract suite holds all of them to this table.

    call                       meaning
    -------------------------  ----------------------------------------------------------------
    stream.launch(work)        returns at once; a stream runs its calls first in, first out
    (two streams)              unordered unless an event orders them
    (host before a launch)     ordered: work sees all that the host did before launching it
    stream.record(event)       marks the tail NOW; recording an event again moves its mark
    stream.wait(event)         later work of this stream runs after the mark the event has at the
                               time of THIS call; recording it again later changes nothing here
    wait/sync, never recorded  returns at once
    event.sync()               blocks the host until the mark the event has now is reached
    event.sync(timeout_s)      the same, but gives up after so long and returns False
    stream.sync()              blocks the host until everything launched so far is done
    event.is_done              True once the mark is reached or its stream failed or was closed;
                               only sync() tells which
    (after sync, is_done)      the host may read what the work before the mark wrote; not sooner

    work raises                the error is kept and sticks: later work of that stream is skipped
    sync after the failure     raises it, each time: an SsdError as it is, anything else as the
                               __cause__ of a DeviceError. A mark set before the failure is sound
    wait on a failed mark      the waiting stream fails with the same error when it gets there:
                               it never runs on data that was not written, and never deadlocks
    (recovery)                 a failed stream stays failed: close it and create another

    begin_capture              until end_capture, launch, record and wait on this stream are kept
                               and not run; one stream of a device captures at a time
    graph.launch(stream)       makes the kept calls on that stream, in order. The Python values in
                               them are those of the capture, buffers are read and written when
                               they run, events are recorded and waited for anew. No call joins
                               another stream to the capture
    sync, is_done, allocate    refused with DeviceError while any stream of the device captures

    close()                    idempotent, never raises what work raised. Work that has begun is
                               finished; work that has not may be dropped, and whoever waits for
                               it gets a DeviceError. So: sync first. Closing a device closes its
                               streams; its buffers stay valid while somebody holds them
    inside work                no call to the device or to its streams and events (DeviceError)

One host thread at a time drives a device. ctrl-C interrupts sync().

`reads` and `writes` name what work touches, whole buffers or row ranges. They order nothing: a
device created with its order checker on raises `order.OrderError` when two accesses that need an
order have none. Streams and buffers carry names for messages; the names of a device's open
streams differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class BufferRange:
    """Rows `start` to `stop` (exclusive) of a buffer; a row is one index of the first axis."""

    buffer: Buffer
    start: int
    stop: int


class Buffer(Protocol):
    """Memory of a device: a C-contiguous array, zeroed when it is allocated.

    It belongs to whoever holds it and is freed with the last reference.
    """

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """At least one axis."""

    @property
    def dtype(self) -> np.dtype:
        """Any numpy dtype without Python objects."""

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""

    @property
    def array(self) -> np.ndarray:
        """The memory itself, as `shape` and `dtype`; the same object each time.

        Raises DeviceError where the host cannot see the memory.
        """

    @property
    def address(self) -> int:
        """Address of the first byte, a multiple of 64; fixed for the buffer's life."""

    def rows(self, start: int, stop: int) -> BufferRange:
        """The rows `start` to `stop`, for `reads` and `writes`.

        Raises DeviceError unless 0 <= start <= stop <= shape[0].
        """


Access: TypeAlias = Buffer | BufferRange


class Event(Protocol):
    """A point in a stream that others can wait for."""

    @property
    def is_done(self) -> bool:
        """Whether the last recorded mark is reached; True when none was ever recorded.

        Raises DeviceError during a capture.
        """

    def sync(self, timeout_s: float | None = None) -> bool:
        """Block the calling host thread until the last recorded mark is reached: True; or for
        ``timeout_s`` seconds, if given, and then False. A device without a clock gives up as soon
        as nothing can run any more.

        Raises the error that its stream had at the mark, or DeviceError during a capture.
        """


class Stream(Protocol):
    """A queue of work that runs first in, first out."""

    @property
    def name(self) -> str:
        """For messages; no other open stream of the device has it."""

    def launch(
        self,
        work: Callable[[], None],
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        """Append work. `label` names it in messages.

        Raises OrderError when the checker is on and the work would touch a range that other
        work may be touching at the same time; nothing is appended then.
        """

    def record(self, event: Event | None = None) -> Event:
        """Set the mark of `event` (a new one if None) to the tail and return the event."""

    def wait(self, event: Event) -> None:
        """Hold back later work of this stream until the mark that `event` has now."""

    def sync(self) -> None:
        """Block the calling host thread until all launched work is done.

        Raises the error of the stream, or DeviceError during a capture.
        """

    def begin_capture(self) -> None:
        """From here on keep the calls instead of running them."""

    def end_capture(self) -> Graph:
        """Stop keeping calls and return them. Raises DeviceError without begin_capture."""

    def close(self) -> None:
        """Stop the stream; see the table above for work that is still queued."""


class Graph(Protocol):
    """The calls of a capture, to be made again any number of times."""

    def launch(self, stream: Stream) -> None:
        """Make the captured calls on `stream`, which may be capturing itself.

        Raises DeviceError for a stream of another device.
        """


class Device(Protocol):
    """Owner of streams, events and buffers."""

    @property
    def name(self) -> str:
        """For messages."""

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> Stream:
        """Open a stream. Its work runs on the CPU `cores` only, where the device has a say.

        Raises DeviceError for a name in use, or for cores the process may not run on.
        """

    def create_event(self, name: str = "") -> Event:
        """A new event without a mark."""

    def allocate(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
        """A new zeroed buffer.

        Raises DeviceError for a shape or dtype that cannot be held, for too little memory, and
        during a capture.
        """

    def host_access(
        self,
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        """Tell the order checker that the host touches these ranges from now to its next call.

        Does nothing when the checker is off. Raises OrderError where a stream may still be
        touching them.
        """

    def close(self) -> None:
        """Close all streams; see the table above."""
