"""The happens-before checker: finds two accesses that need an order and have none.

Every stream is an actor, the host is one more. An actor's vector clock says, for every actor, how
many of its accesses happened before the actor's next one. A launch takes in the host's clock;
recording copies the stream's clock to the mark; waiting and syncing take the mark's clock in.

For each stretch of rows of a buffer the checker keeps the last write and, per actor, the last read
since. An access conflicts with a write of another actor, and a write also with reads, unless the
earlier access lies within the later actor's clock.

All of this follows from the order of the calls alone, so the check is made at the call, before
anything runs, and its verdict does not depend on timing (apart from what `Event.is_done` told the
host). What work touches without declaring it cannot be seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from engines.errors import DeviceError
from runtime.device.api import Access, Buffer, BufferRange
from runtime.device.lane import HOST, Clock, Mark

HOST_ACTOR = 0

# How many recordings per stream a message can name.
_REMEMBERED_MARKS = 16


class OrderError(DeviceError):
    """Two accesses to the same rows, at least one a write, without an event between them."""


@dataclass(frozen=True, slots=True)
class _Touch:
    """The `tick`-th access of an actor."""

    actor: int
    tick: int
    label: str


@dataclass(slots=True)
class _Stretch:
    """Rows [start, stop) that have the same history."""

    start: int
    stop: int
    write: _Touch | None = None
    reads: dict[int, _Touch] = field(default_factory=dict)

    def cut(self, row: int) -> tuple[_Stretch, _Stretch]:
        left = _Stretch(self.start, row, self.write, dict(self.reads))
        return left, _Stretch(row, self.stop, self.write, self.reads)


class OrderChecker:
    """Clocks of all actors and the access history of all buffers of one device."""

    def __init__(self) -> None:
        self._names = [HOST]
        self._clocks: list[Clock] = [{}]
        self._marks: list[deque[tuple[str, int]]] = [deque()]
        self._history: WeakKeyDictionary[Buffer, list[_Stretch]] = WeakKeyDictionary()

    def add_stream(self, name: str) -> int:
        """The actor number of a new stream."""
        self._names.append(name)
        self._clocks.append({})
        self._marks.append(deque(maxlen=_REMEMBERED_MARKS))
        return len(self._names) - 1

    def launch(
        self, actor: int, label: str, reads: Sequence[Access], writes: Sequence[Access]
    ) -> None:
        """Check and note the accesses of a launch. Raises OrderError and then notes nothing."""
        _take_in(self._clocks[actor], self._clocks[HOST_ACTOR])
        self._access(actor, label, reads, writes)

    def host_access(self, label: str, reads: Sequence[Access], writes: Sequence[Access]) -> None:
        """Check and note accesses of the host thread. Raises OrderError and then notes nothing."""
        self._access(HOST_ACTOR, label, reads, writes)

    def record(self, actor: int, event: str) -> Clock:
        """The clock to keep with a mark set now."""
        self._marks[actor].append((event, self._clocks[actor].get(actor, 0)))
        return dict(self._clocks[actor])

    def wait(self, actor: int, mark: Mark) -> None:
        """From now on the actor comes after all that came before the mark."""
        if mark.clock is not None:
            _take_in(self._clocks[actor], mark.clock)

    def sync(self, mark: Mark) -> None:
        """From now on the host comes after all that came before the mark."""
        self.wait(HOST_ACTOR, mark)

    def join(self, actor: int) -> None:
        """From now on the host comes after all that the stream did: it was closed."""
        _take_in(self._clocks[HOST_ACTOR], self._clocks[actor])

    def clock(self, actor: int) -> Clock:
        """The clock to keep with a mark that no event names: the tail at a sync."""
        return dict(self._clocks[actor])

    def _access(
        self, actor: int, label: str, reads: Sequence[Access], writes: Sequence[Access]
    ) -> None:
        clock = self._clocks[actor]
        touch = _Touch(actor, clock.get(actor, 0) + 1, label)
        for buffer, stretch in self._stretches(reads):
            self._require_order(touch, "reads", buffer, "writes", stretch, _writers(stretch))
        for buffer, stretch in self._stretches(writes):
            self._require_order(touch, "writes", buffer, "writes", stretch, _writers(stretch))
            readers = stretch.reads.values()
            self._require_order(touch, "writes", buffer, "reads", stretch, readers)

        clock[actor] = touch.tick
        for _, stretch in self._stretches(reads):
            stretch.reads[actor] = touch
        for access in writes:
            self._overwrite(_as_range(access), touch)

    def _require_order(
        self,
        later: _Touch,
        later_verb: str,
        buffer: Buffer,
        earlier_verb: str,
        stretch: _Stretch,
        touches: Iterable[_Touch],
    ) -> None:
        clock = self._clocks[later.actor]
        for earlier in touches:
            if earlier.actor == later.actor or earlier.tick <= clock.get(earlier.actor, 0):
                continue
            rows = f"{buffer.name}[{stretch.start}:{stretch.stop}]"
            raise OrderError(
                f"{later.label!r} on {self._place(later)} {later_verb} {rows}, "
                f"{earlier.label!r} on {self._place(earlier)} {earlier_verb} it, "
                f"and nothing orders them: {self._remedy(earlier, later)}"
            )

    def _place(self, touch: _Touch) -> str:
        if touch.actor == HOST_ACTOR:
            return "the host"
        return f"stream {self._names[touch.actor]!r}"

    def _remedy(self, earlier: _Touch, later: _Touch) -> str:
        """Which event is missing. (`earlier` is never the host: launches come after the host.)"""
        who = self._place(later)
        act = "sync" if later.actor == HOST_ACTOR else "wait for"
        for event, tick in self._marks[earlier.actor]:
            if tick >= earlier.tick:
                return (
                    f"{event!r} was recorded after {earlier.label!r}, but {who} did not {act} it "
                    f"before {later.label!r}"
                )
        return (
            f"record an event on {self._place(earlier)} after {earlier.label!r} and let {who} "
            f"{act} it before {later.label!r}"
        )

    def _stretches(self, accesses: Sequence[Access]) -> Iterator[tuple[Buffer, _Stretch]]:
        """All stretches inside the accessed rows, cut at the borders of the access."""
        for access in accesses:
            rows = _as_range(access)
            history = self._history.get(rows.buffer)
            if history is None:
                history = [_Stretch(0, rows.buffer.shape[0])]
                self._history[rows.buffer] = history
            _cut_at(history, rows.start)
            _cut_at(history, rows.stop)
            for stretch in history:
                if rows.start <= stretch.start < rows.stop:
                    yield rows.buffer, stretch

    def _overwrite(self, rows: BufferRange, touch: _Touch) -> None:
        """Make the rows one stretch again: a write that is in order ends their history."""
        if rows.start == rows.stop:
            return
        history = self._history[rows.buffer]
        inside = [i for i, s in enumerate(history) if rows.start <= s.start < rows.stop]
        history[inside[0] : inside[-1] + 1] = [_Stretch(rows.start, rows.stop, touch)]


def _writers(stretch: _Stretch) -> Iterable[_Touch]:
    return () if stretch.write is None else (stretch.write,)


def _take_in(clock: Clock, other: Clock) -> None:
    for actor, tick in other.items():
        if tick > clock.get(actor, 0):
            clock[actor] = tick


def _as_range(access: Access) -> BufferRange:
    return access if isinstance(access, BufferRange) else access.rows(0, access.shape[0])


def _cut_at(history: list[_Stretch], row: int) -> None:
    for i, stretch in enumerate(history):
        if stretch.start < row < stretch.stop:
            history[i : i + 1] = stretch.cut(row)
            return
