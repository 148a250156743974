"""What a stream of the host devices is made of: a lane, and the steps that pass through it.

A lane takes the steps of one stream in order. Whose thread takes them is all that the devices
differ in: `host.py` gives every lane a thread, `seeded.py` takes all steps in the host's thread.

    step     what it does                                once the lane failed   once it closed
    Launch   calls the work; an error fails the lane     skipped                dropped
    Mark     wakes who waits for it, passes the error    the same               the same: "closed"
    WaitFor  takes over the error of its mark            only waits             dropped
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import NoReturn, Protocol

from engines.errors import DeviceError, SsdError

HOST = "host"
"""What messages and choosers call the host thread; no stream has this name."""

Clock = dict[int, int]
"""Vector clock of the order checker: actor -> how many of its accesses happened before."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a lane skips all further work: what was raised first, and where."""

    stream: str
    label: str
    error: BaseException
    traceback: TracebackType | None

    def surface(self) -> NoReturn:
        """Raise it in the calling thread; may be called any number of times."""
        if isinstance(self.error, SsdError):
            # Without its first traceback it would grow by the frames of every sync.
            raise self.error.with_traceback(self.traceback)
        raise DeviceError(
            f"work {self.label!r} on stream {self.stream!r} failed with "
            f"{type(self.error).__name__}: {self.error}; the streams that depend on it skip all "
            "further work, close them and create new ones"
        ) from self.error


class Step(Protocol):
    """One entry of a lane's queue."""

    @property
    def blocker(self) -> Mark | None:
        """The mark that must be reached before the step may run."""

    def run(self, lane: Lane) -> None: ...

    def drop(self) -> None:
        """Instead of `run`, when the lane was closed."""


class Lane(Protocol):
    """The queue of one stream and whoever takes its steps."""

    name: str
    failure: Failure | None

    def put(self, step: Step) -> None:
        """Append a step. Called by the host thread."""

    def poll(self, mark: Mark) -> bool:
        """Whether a mark of this lane is reached. Called by the host thread."""

    def block_until(self, mark: Mark, timeout_s: float | None = None) -> bool:
        """Return True when a mark of this lane is reached, False after ``timeout_s``. Called by
        the host thread."""

    def close(self) -> None:
        """Drop the steps not yet begun and finish the one that has. Called once."""


class Mark:
    """One recording of an event (or the tail at a sync): reached once, never reset.

    ``reached_at_s`` is when, on a device with simulated time (`virtual.py`). ``late_bells`` are
    rung by whoever takes the lane's steps, in its own time (`host.py`); who adds one must look at
    ``is_reached`` afterwards.
    """

    __slots__ = (
        "_bells",
        "clock",
        "event",
        "failure",
        "is_reached",
        "lane",
        "late_bells",
        "reached_at_s",
    )

    blocker = None

    def __init__(self, lane: Lane, event: str, clock: Clock | None) -> None:
        self.lane = lane
        self.event = event
        self.clock = clock
        self.is_reached = False
        self.reached_at_s = 0.0
        self.failure: Failure | None = None
        self.late_bells: list[SimpleQueue[None]] = []
        self._bells: list[SimpleQueue[None]] = []

    def ring_when_reached(self, bell: SimpleQueue[None]) -> None:
        """Put one item into `bell` when the mark is reached.

        The caller must look at `is_reached` after this call: if the mark was reached meanwhile
        the bell may stay silent.
        """
        self._bells.append(bell)

    def run(self, lane: Lane) -> None:
        self._reach(lane.failure)

    def drop(self) -> None:
        error = DeviceError(
            f"stream {self.lane.name!r} was closed before it reached {self.event!r}; "
            "sync before closing it"
        )
        self._reach(Failure(self.lane.name, "close", error, None))

    def _reach(self, failure: Failure | None) -> None:
        self.failure = failure
        # Set before ringing: a bell hung up too late to ring sees it.
        self.is_reached = True
        for bell in self._bells:
            bell.put(None)


class Launch:
    """Work to call."""

    __slots__ = ("label", "work")

    blocker = None

    def __init__(self, work: Callable[[], None], label: str) -> None:
        self.work = work
        self.label = label

    def run(self, lane: Lane) -> None:
        if lane.failure is not None:
            return
        try:
            self.work()
        except BaseException as error:  # SystemExit too must fail the stream, not its thread
            label = self.label or work_name(self.work)
            lane.failure = Failure(lane.name, label, error, error.__traceback__)

    def drop(self) -> None:
        pass


class WaitFor:
    """Hold the lane until a mark, of any lane, is reached."""

    __slots__ = ("blocker",)

    def __init__(self, mark: Mark) -> None:
        self.blocker = mark

    def run(self, lane: Lane) -> None:
        if lane.failure is None:
            lane.failure = self.blocker.failure

    def drop(self) -> None:
        pass


def work_name(work: Callable[[], None]) -> str:
    """A name for work that was launched without a label."""
    return getattr(work, "__qualname__", type(work).__name__)
