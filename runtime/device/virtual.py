"""The virtual device: streams that work side by side in simulated time, in one thread.

Work takes no time but what it says it does (`VirtualClock.spend`). Every stream has a time of its
own, and so has the host:

    what                    when, on the virtual clock
    ----------------------  -----------------------------------------------------------------------
    a step of a stream      begins at the latest of: the end of the stream's step before, the
                            host's time when it was launched, the time of the mark it waits for
    spend(s) inside work    moves the stream on by s seconds
    spend(s) on the host    moves the host on; launches themselves are free
    a mark                  is reached at the end of the step before it
    sync, is_done           the host is at least as far as the mark: a poll waits like a sync
    sync(timeout_s)         the same where the mark can be reached at all; else the host has waited

So a program that is ordered by events takes exactly as long as its critical path, the same on
every machine and in every run: a schedule can be timed without a clock. Steps run as soon as they
can, which costs nothing: their times follow from the table and not from the order they run in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engines.errors import DeviceError
from runtime.device.lane import Lane, Mark, Step
from runtime.device.seeded import Interleaver, SeededDevice, SeededLane, eager


class VirtualClock:
    """The times of one device's streams and of its host, in seconds from 0 on."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self._running: _TimedLane | None = None

    @property
    def now_s(self) -> float:
        """Of the stream whose work is running, else of the host."""
        return self.host_s if self._running is None else self._running.time_s

    def spend(self, seconds: float) -> None:
        """The running work, or the host, takes ``seconds``. Raises DeviceError for less than 0."""
        if seconds < 0:
            raise DeviceError(f"work cannot take {seconds} s; give 0 or more")
        if self._running is None:
            self.host_s += seconds
        else:
            self._running.time_s += seconds

    def run_in(self, lane: _TimedLane | None) -> None:
        """From here on ``spend`` is that stream's, or the host's."""
        self._running = lane

    def see(self, mark: Mark) -> None:
        """The host has waited for a mark."""
        self.host_s = max(self.host_s, mark.reached_at_s)


class VirtualDevice(SeededDevice):
    """See ``api.Device``. ``clock`` is what its work spends time on."""

    def __init__(self, name: str = "virtual", *, check: bool = False) -> None:
        super().__init__(eager, name=name, check=check)
        self.clock = VirtualClock()

    def _open_lane(self, name: str, cores: Sequence[int] | None) -> Lane:  # noqa: ARG002
        return _TimedLane(name, self._interleaver, self.clock)


class _TimedLane(SeededLane):
    """A queue of steps that knows how late it is."""

    def __init__(self, name: str, interleaver: Interleaver, clock: VirtualClock) -> None:
        self.time_s = 0.0
        self._clock = clock
        self._launched_s: deque[float] = deque()
        super().__init__(name, interleaver)

    def put(self, step: Step) -> None:
        self._launched_s.append(self._clock.host_s)
        super().put(step)

    def poll(self, mark: Mark) -> bool:
        is_reached = super().poll(mark)
        if is_reached:
            self._clock.see(mark)
        return is_reached

    def block_until(self, mark: Mark, timeout_s: float | None = None) -> bool:
        is_reached = super().block_until(mark, timeout_s)
        if is_reached:
            self._clock.see(mark)
        elif timeout_s is not None:
            self._clock.spend(timeout_s)
        return is_reached

    def take_step(self) -> None:
        step = self._steps[0]
        waited = 0.0 if step.blocker is None else step.blocker.reached_at_s
        self.time_s = max(self.time_s, self._launched_s.popleft(), waited)
        if isinstance(step, Mark):
            step.reached_at_s = self.time_s
        self._clock.run_in(self)
        try:
            super().take_step()
        finally:
            self._clock.run_in(None)
