"""The host device: one real thread a stream, optionally pinned to CPU cores.

A launch costs a queue put; a sync, or a wait on another stream's event, costs one wake-up of a
sleeping thread. Measured on two shared cores: 1 us to launch and record, 16 to 37 us to launch,
record and sync, 11 to 25 us a hop between two streams. Threads sleep and never spin: 50 us of
spinning before the sleep did not lower these, and with Python's global lock a spinning waiter
takes its turns from the thread it waits for.

Work should release that lock for its long parts, as numpy and ONNX Runtime do. Pure Python work on
one stream holds up the others by up to `sys.getswitchinterval()` each time they need the lock.

So who is woken when decides who waits for the lock. A mark wakes streams at once, and the host
behind them: when its own stream goes on to work or has nothing to do, or after `LATE_S` where it
waits for another stream. What the host does next then runs beside an engine's call and not between
two of them: it saved a third to a half of the time between two verifications. A shorter switch
interval (50 us) made that time longer: the lock then changes hands in the middle of everything.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread, get_ident

from engines.errors import DeviceError
from runtime.device.cores import available_cores
from runtime.device.lane import Failure, Lane, Launch, Mark, Step
from runtime.device.queued import QueuedDevice

# A step of an engine takes milliseconds; at exit, give it that and not much more.
_EXIT_TIMEOUT_S = 1.0
LATE_S = 500e-6
"""How long a mark may be reached before a host that waits for it is told."""


class HostDevice(QueuedDevice):
    """Runs every stream in a thread of its own. See `api.Device`.

    `check` turns the order checker on. `close_timeout_s` is how long closing a stream waits for
    the work that it is in the middle of, before it raises DeviceError and leaves the thread
    behind. The threads are daemons: a device that nobody closed does not keep Python from exiting.
    """

    def __init__(
        self, name: str = "host", *, check: bool = False, close_timeout_s: float = 10.0
    ) -> None:
        super().__init__(name, check=check)
        self._close_timeout_s = close_timeout_s
        self._work_threads: set[int] = set()

    def _open_lane(self, name: str, cores: Sequence[int] | None) -> Lane:
        if cores is not None:
            _require_cores(name, cores)
        lane = _ThreadLane(name, self._work_threads, self._close_timeout_s)
        if cores is not None and hasattr(os, "sched_setaffinity"):  # macOS has no such call
            lane.put(Launch(partial(os.sched_setaffinity, 0, set(cores)), "pin to cores"))
        return lane

    def _is_inside_work(self) -> bool:
        return get_ident() in self._work_threads


class _ThreadLane:
    """A queue of steps and the thread that takes them."""

    def __init__(self, name: str, work_threads: set[int], close_timeout_s: float) -> None:
        self.name = name
        self.failure: Failure | None = None
        self._close_timeout_s = close_timeout_s
        self._work_threads = work_threads
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._late_bells: list[SimpleQueue[None]] = []
        self._is_closing = False
        self._thread = Thread(target=self._take_steps, name=f"stream {name}", daemon=True)
        self._thread.start()
        _open_lanes.add(self)

    def put(self, step: Step) -> None:
        self._steps.put(step)

    def poll(self, mark: Mark) -> bool:
        return mark.is_reached

    def block_until(self, mark: Mark, timeout_s: float | None = None) -> bool:
        bell: SimpleQueue[None] = SimpleQueue()
        mark.late_bells.append(bell)
        # A bell is rung once, so one ring or one timeout ends the wait.
        if not mark.is_reached:
            with suppress(Empty):
                bell.get(timeout=timeout_s)
        return mark.is_reached

    def close(self) -> None:
        self.stop(self._close_timeout_s)
        if self._thread.is_alive():
            raise DeviceError(
                f"stream {self.name!r} is still in the middle of its work after "
                f"{self._close_timeout_s:g} s; its thread is left behind, end the process"
            )

    def stop(self, timeout_s: float) -> None:
        """Drop what has not begun and wait up to `timeout_s` for what has."""
        self._is_closing = True
        self._bell.put(None)
        self._steps.put(None)
        self._thread.join(timeout_s)

    def _take_steps(self) -> None:
        self._work_threads.add(get_ident())
        while (step := self._next_step()) is not None:
            if self._is_closing:
                step.drop()
            else:
                step.run(self)
            if isinstance(step, Mark):
                self._late_bells += step.late_bells
            # The step may be the last reference to large arrays, and the next may be far off.
            del step
        self._ring_late_bells()
        self._work_threads.discard(get_ident())

    def _next_step(self) -> Step | None:
        if self._steps.empty():
            self._ring_late_bells()
        step = self._steps.get()
        if step is not None and step.blocker is not None:
            self._sleep_until(step.blocker)
        else:
            self._ring_late_bells()
        return step

    def _ring_late_bells(self) -> None:
        for bell in self._late_bells:
            bell.put(None)
        self._late_bells.clear()

    def _sleep_until(self, mark: Mark) -> None:
        if mark.is_reached:
            return
        mark.ring_when_reached(self._bell)
        # A ring left over from an earlier mark costs one more turn.
        while not (mark.is_reached or self._is_closing):
            try:
                self._bell.get(timeout=LATE_S if self._late_bells else None)
            except Empty:
                self._ring_late_bells()


def _require_cores(stream: str, cores: Sequence[int]) -> None:
    allowed = available_cores()
    if not cores or not set(cores) <= set(allowed):
        raise DeviceError(
            f"stream {stream!r} cannot be pinned to cores {sorted(cores)}; this process may run "
            f"on {list(allowed)}"
        )


_open_lanes: weakref.WeakSet[_ThreadLane] = weakref.WeakSet()


@atexit.register
def _stop_open_lanes() -> None:
    """Let running engine calls end: tearing a library down under a running call can crash."""
    for lane in list(_open_lanes):
        lane.stop(_EXIT_TIMEOUT_S)
