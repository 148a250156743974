"""The seeded device: all streams in one thread, in an order that a seed or a test chooses.

A program that is ordered by events gives the same result in every order that the device may take.
This device takes any of them on demand and reproducibly: property tests draw the order, and a
failure found once can be replayed.

Work is queued when it is launched. The device then asks a chooser who goes next, naming all that
could go: the host, and every stream whose first step waits for nothing.

    the host is at             it may be chosen   asked until
    -------------------------  -----------------  ---------------------------------------------
    launch, record, wait       yes                the host is chosen
    is_done                    yes                the host is chosen, or the mark is reached
    sync                       no                 what it waits for is reached
    close                      yes                the host is chosen; the rest is dropped

The list is in order of laziness: first the host, or in a sync the stream that has to run for it;
last what is needed least. So `lazy` (always the first) runs work as late as it can run, `eager`
(always the last) at once, and hypothesis shrinks towards lazy.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from engines.errors import DeviceError
from runtime.device.api import Stream
from runtime.device.lane import HOST, Failure, Lane, Mark, Step, WaitFor
from runtime.device.queued import QueuedDevice

Chooser = Callable[[Sequence[str]], int]
"""Gets the names of all that could go next (at least one), returns the index of the one to go."""

# A host that polls is_done must see it turn, even with a chooser that always prefers the host.
_MAX_FRUITLESS_POLLS = 8


def lazy(_names: Sequence[str]) -> int:
    """Run work only when the host waits for it, and only what it waits for."""
    return 0


def eager(names: Sequence[str]) -> int:
    """Run work as soon as it is launched and what it waits for is done."""
    return len(names) - 1


def weighted(rng: random.Random) -> Chooser:
    """Choose at random, with odds of up to 1 : 1000 between two names, drawn once per name.

    Equal odds would mix streams finely and hardly ever starve one for long; both kinds of order
    reveal missing events.
    """
    weights: dict[str, float] = {}

    def choose(names: Sequence[str]) -> int:
        for name in names:
            if name not in weights:
                weights[name] = 10 ** rng.uniform(-1.5, 1.5)
        return rng.choices(range(len(names)), [weights[name] for name in names])[0]

    return choose


class SeededDevice(QueuedDevice):
    """Runs all streams in the host's thread, as the chooser says. See `api.Device`.

    `chooser` is a seed or a `random.Random` for `weighted`, or the chooser itself. `cores` of
    `create_stream` are ignored. The order checker is on unless `check` is False.

    Beyond the protocol, a stream can be held, as by work that takes for ever. A sync that needs
    what comes after raises DeviceError.
    """

    def __init__(
        self,
        chooser: int | random.Random | Chooser = 0,
        *,
        name: str = "seeded",
        check: bool = True,
    ) -> None:
        super().__init__(name, check=check)
        if isinstance(chooser, int):
            chooser = random.Random(chooser)
        self._interleaver = Interleaver(
            weighted(chooser) if isinstance(chooser, random.Random) else chooser
        )

    def hold(self, stream: Stream) -> None:
        """Let nothing that is appended to the stream from now on run until `release`."""
        self._interleaver.lane_named(stream.name).hold()

    def release(self, stream: Stream) -> None:
        """Undo every `hold` of the stream."""
        self._interleaver.lane_named(stream.name).release()

    def _open_lane(self, name: str, cores: Sequence[int] | None) -> Lane:  # noqa: ARG002
        return SeededLane(name, self._interleaver)

    def _is_inside_work(self) -> bool:
        return self._interleaver.is_running


class Interleaver:
    """Picks the stream that takes the next step."""

    def __init__(self, choose: Chooser) -> None:
        self.lanes: list[SeededLane] = []
        self.is_running = False
        self._choose = choose

    def let_streams_run(self, mark: Mark | None = None) -> None:
        """Take steps until the host is chosen, nothing can run, or the mark is reached."""
        while mark is None or not mark.is_reached:
            ready = self._ready(mark)
            if not ready:
                return
            index = self._pick([HOST, *(lane.name for lane in ready)])
            if index == 0:
                return
            self._take_step(ready[index - 1])

    def run_until(self, mark: Mark) -> None:
        """Take steps until the mark is reached. Raises DeviceError when nothing can run."""
        while not mark.is_reached:
            if not self.take_one_for(mark):
                raise DeviceError(self._deadlock(mark))

    def take_one_for(self, mark: Mark) -> bool:
        """Take one step while the host has to wait for the mark; False when nothing can run."""
        ready = self._ready(mark)
        if ready:
            self._take_step(ready[self._pick([lane.name for lane in ready])])
        return bool(ready)

    def _ready(self, mark: Mark | None) -> list[SeededLane]:
        """Lanes that can take a step; first the one that brings the mark nearer, if it can."""
        ready = [lane for lane in self.lanes if lane.is_ready]
        while mark is not None:
            lane = self.lane_named(mark.lane.name)
            if lane in ready:
                ready.remove(lane)
                return [lane, *ready]
            mark = None if lane.is_held else lane.blocker
        return ready

    def lane_named(self, name: str) -> SeededLane:
        for lane in self.lanes:
            if lane.name == name:
                return lane
        raise DeviceError(f"there is no open stream {name!r}; create it first")

    def _pick(self, names: list[str]) -> int:
        index = self._choose(names)
        if not 0 <= index < len(names):
            raise DeviceError(
                f"the chooser returned {index} for {names}; expected an index from 0 to "
                f"{len(names) - 1}"
            )
        return index

    def _take_step(self, lane: SeededLane) -> None:
        self.is_running = True
        try:
            lane.take_step()
        finally:
            self.is_running = False

    def _deadlock(self, mark: Mark) -> str:
        reasons = [f"the host waits for {mark.event!r} of stream {mark.lane.name!r}"]
        for lane in self.lanes:
            if lane.is_held:
                reasons.append(f"stream {lane.name!r} is held")
            elif (blocker := lane.blocker) is not None:
                reasons.append(
                    f"stream {lane.name!r} waits for {blocker.event!r} of stream "
                    f"{blocker.lane.name!r}"
                )
        return f"deadlock, nothing can run: {'; '.join(reasons)}"


class SeededLane:
    """A queue of steps; the interleaver takes them."""

    def __init__(self, name: str, interleaver: Interleaver) -> None:
        self.name = name
        self.failure: Failure | None = None
        self._steps: deque[Step] = deque()
        self._latches: list[Mark] = []
        self._interleaver = interleaver
        self._num_fruitless_polls = 0
        interleaver.lanes.append(self)

    @property
    def blocker(self) -> Mark | None:
        """The mark that the first step waits for, if it has to wait."""
        mark = self._steps[0].blocker if self._steps else None
        return None if mark is None or mark.is_reached else mark

    @property
    def is_ready(self) -> bool:
        return bool(self._steps) and self.blocker is None

    @property
    def is_held(self) -> bool:
        """Whether the lane has come to a `hold`."""
        return self.blocker in self._latches

    def hold(self) -> None:
        # A mark that is in no queue, so nothing but `release` reaches it.
        self._latches.append(Mark(self, "release", None))
        self.put(WaitFor(self._latches[-1]))

    def release(self) -> None:
        for latch in self._latches:
            latch.run(self)
        self._latches.clear()

    def put(self, step: Step) -> None:
        self._steps.append(step)
        self._interleaver.let_streams_run()

    def poll(self, mark: Mark) -> bool:
        self._interleaver.let_streams_run(mark)
        if mark.is_reached:
            self._num_fruitless_polls = 0
            return True
        self._num_fruitless_polls += 1
        if self._num_fruitless_polls > _MAX_FRUITLESS_POLLS:
            self._interleaver.take_one_for(mark)
        return mark.is_reached

    def block_until(self, mark: Mark, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self._interleaver.run_until(mark)
            return True
        while not mark.is_reached:
            if not self._interleaver.take_one_for(mark):
                return False
        return True

    def take_step(self) -> None:
        had_failed = self.failure is not None
        self._steps.popleft().run(self)
        if self.failure is None or had_failed or self.failure.stream != self.name:
            return
        if not isinstance(self.failure.error, Exception):
            # ctrl-C, or a test that ends itself: it hit the work because it hit this thread.
            raise self.failure.error

    def close(self) -> None:
        try:
            self._interleaver.let_streams_run()
        finally:
            self._interleaver.lanes.remove(self)
            while self._steps:
                self._steps.popleft().drop()
