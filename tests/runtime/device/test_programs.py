"""Random programs on random schedules.

The order checker is held against a second, slower judgement of the same question (reachability in
the graph of all calls), and the interleaver against running the program top to bottom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.device.api import BufferRange, Device
from runtime.device.host import HostDevice
from runtime.device.order import OrderError
from runtime.device.seeded import SeededDevice, lazy

NUM_STREAMS, NUM_EVENTS, NUM_ROWS = 3, 3, 4


@dataclass(frozen=True, slots=True)
class Rows:
    start: int
    stop: int

    def overlaps(self, other: Rows) -> bool:
        return max(self.start, other.start) < min(self.stop, other.stop)


@dataclass(frozen=True, slots=True)
class Launch:
    """`stream` None is an access by the host itself."""

    stream: int | None
    reads: Rows
    writes: Rows

    def conflicts(self, other: Launch) -> bool:
        return (
            self.writes.overlaps(other.writes)
            or self.writes.overlaps(other.reads)
            or self.reads.overlaps(other.writes)
        )


@dataclass(frozen=True, slots=True)
class Record:
    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Wait:
    """`stream` None is a sync by the host."""

    stream: int | None
    event: int


Call = Launch | Record | Wait


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    start = draw(st.integers(0, NUM_ROWS))
    return Rows(start, draw(st.integers(start, NUM_ROWS)))


stream_or_host = st.none() | st.integers(0, NUM_STREAMS - 1)
launches = st.builds(Launch, stream_or_host, rows(), rows())
records = st.builds(Record, st.integers(0, NUM_STREAMS - 1), st.integers(0, NUM_EVENTS - 1))
waits = st.builds(Wait, stream_or_host, st.integers(0, NUM_EVENTS - 1))
programs = st.lists(launches | launches | records | waits, max_size=25)


def first_race(program: list[Call]) -> int | None:
    """Index of the first access that conflicts with an earlier one that it does not come after.

    Draws an edge for each line of the table in runtime/device/api.py and follows them all.
    """
    tail: dict[int | None, int] = {}  # the last call of each stream, None = host
    recorded: dict[int, int] = {}
    before: list[set[int]] = []
    for i, call in enumerate(program):
        edges = [tail[call.stream]] if call.stream in tail else []
        if isinstance(call, Wait) and call.event in recorded:
            edges.append(recorded[call.event])
        if None in tail:
            edges.append(tail[None])  # the host comes before all that it calls
        before.append(set(edges).union(*(before[edge] for edge in edges)))
        tail[call.stream] = i
        if isinstance(call, Record):
            recorded[call.event] = i
        if isinstance(call, Launch):
            for j, earlier in enumerate(program[:i]):
                if isinstance(earlier, Launch) and earlier.conflicts(call) and j not in before[i]:
                    return i
    return None


def step(array: npt.NDArray[np.int64], number: int, launch: Launch) -> None:
    """Work whose result depends on all that it reads and on the order of all writes."""
    read = int(array[launch.reads.start : launch.reads.stop].sum())
    target = array[launch.writes.start : launch.writes.stop]
    target[:] = (target * 3 + read * 7 + number + 1) % 1_000_003


def run_in_order(program: list[Call]) -> list[int]:
    array = np.zeros(NUM_ROWS, np.int64)
    for number, call in enumerate(program):
        if isinstance(call, Launch):
            step(array, number, call)
    return list(map(int, array))


def run_on(device: Device, program: list[Call], calls_made: Callable[[int], None]) -> list[int]:
    """`calls_made` gets the index of each call just before it is made."""
    x = device.allocate("x", (NUM_ROWS,), np.int64)
    streams = [device.create_stream(f"stream {i}") for i in range(NUM_STREAMS)]
    events = [device.create_event() for _ in range(NUM_EVENTS + len(program))]

    def access(part: Rows) -> list[BufferRange]:
        return [x.rows(part.start, part.stop)]

    for number, call in enumerate(program):
        calls_made(number)
        if isinstance(call, Launch):
            work = partial(step, x.array, number, call)
            reads, writes = access(call.reads), access(call.writes)
            if call.stream is None:
                device.host_access(reads=reads, writes=writes)
                work()
            else:
                streams[call.stream].launch(work, reads=reads, writes=writes)
        elif isinstance(call, Record):
            streams[call.stream].record(events[call.event])
        elif call.stream is None:
            events[call.event].sync()
        else:
            streams[call.stream].wait(events[call.event])
    for stream in streams:
        stream.sync()
    return list(map(int, x.array))


def ordered(accesses: list[Launch]) -> list[Call]:
    """Add, for every conflict, an event of its own after the earlier access and a wait."""
    calls: list[Call] = []
    for i, later in enumerate(accesses):
        for j, earlier in enumerate(accesses[:i]):
            if earlier.conflicts(later) and earlier.stream not in (None, later.stream):
                calls.append(Wait(later.stream, NUM_EVENTS + j))
        calls.append(later)
        if later.stream is not None:
            calls.append(Record(later.stream, NUM_EVENTS + i))
    return calls


@given(program=programs, data=st.data())
def test_the_checker_refuses_exactly_the_first_race(
    program: list[Call], data: st.DataObject
) -> None:
    """Neither a missed race nor a false alarm, wherever the schedule runs the work."""
    device = SeededDevice(lambda names: data.draw(st.integers(0, len(names) - 1)))
    made = [-1]
    raced = False
    try:
        run_on(device, program, made.append)
    except OrderError:
        raced = True
    finally:
        device.close()
    assert (made[-1] if raced else None) == first_race(program)


@given(accesses=st.lists(launches, max_size=10), data=st.data())
def test_an_ordered_program_gives_one_result_on_any_schedule(
    accesses: list[Launch], data: st.DataObject
) -> None:
    program = ordered(accesses)
    device = SeededDevice(lambda names: data.draw(st.integers(0, len(names) - 1)))
    assert run_on(device, program, lambda _: None) == run_in_order(program)
    device.close()


@given(accesses=st.lists(launches, max_size=15))
def test_an_ordered_program_gives_the_same_result_on_threads(accesses: list[Launch]) -> None:
    program = ordered(accesses)
    device = HostDevice(check=True)
    assert run_on(device, program, lambda _: None) == run_in_order(program)
    device.close()


@given(accesses=st.lists(launches, min_size=2, max_size=10), data=st.data())
def test_a_removed_wait_is_caught_unless_others_cover_it(
    accesses: list[Launch], data: st.DataObject
) -> None:
    program = ordered(accesses)
    positions = [i for i, call in enumerate(program) if isinstance(call, Wait)]
    if positions:
        del program[data.draw(st.sampled_from(positions))]
    device = SeededDevice(data.draw(st.integers(0, 2**16)))
    if first_race(program) is None:
        assert run_on(device, program, lambda _: None) == run_in_order(program)
    else:
        with pytest.raises(OrderError):
            run_on(device, program, lambda _: None)
    device.close()


# --- the shape of a speculation round ----------------------------------------------------------


def run_rounds(device: Device, missing: str = "") -> Iterator[int]:
    """Three rounds of: the target verifies while the draft branches; the host reads the decision.

    `missing` is the ordering call to leave out.
    """
    target, draft = device.create_stream("target"), device.create_stream("draft")
    tokens = device.allocate("tokens", (4,), np.int64)
    logits = device.allocate("logits", (4,), np.int64)
    branches = device.allocate("branches", (4,), np.int64)
    decision = device.allocate("decision", (1,), np.int64)
    branches_ready = device.create_event("branches_ready")
    decided = device.create_event("decided")
    committed = device.create_event("committed")

    def verify() -> None:
        logits.array[:] = tokens.array * 5 + 1

    def branch() -> None:
        branches.array[:] = tokens.array * 3 + decision.array[0]

    def decide() -> None:
        decision.array[0] = logits.array.sum() % 97

    def commit() -> None:
        tokens.array[:] = branches.array + decision.array[0]

    for _ in range(3):
        target.launch(verify, reads=[tokens], writes=[logits], label="verify")
        draft.launch(branch, reads=[tokens, decision], writes=[branches], label="branch")
        draft.record(branches_ready)
        if missing != "branches_ready":
            target.wait(branches_ready)
        target.launch(decide, reads=[logits], writes=[decision], label="decide")
        target.record(decided)
        if missing != "decided":
            draft.wait(decided)
        draft.launch(commit, reads=[branches, decision], writes=[tokens], label="commit")
        draft.record(committed)
        if missing != "committed":
            target.wait(committed)
        if missing != "sync":
            decided.sync()
        device.host_access(reads=[decision], label="read decision")
        yield int(decision.array[0])


@given(seed=st.integers(0, 2**32))
def test_a_round_gives_one_result_on_any_schedule(seed: int) -> None:
    reference, device = SeededDevice(lazy), SeededDevice(seed)
    assert list(run_rounds(device)) == list(run_rounds(reference))
    device.close()
    reference.close()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("branches_ready", "'decide'.*'branch'.*'branches_ready' was recorded after"),
        ("decided", "'commit'.*'decide'.*'decided' was recorded after"),
        ("committed", "'verify'.*'commit'.*'committed' was recorded after"),
        ("sync", "'read decision' on the host.*'decide'.*the host did not sync it"),
    ],
)
@pytest.mark.parametrize("make", [partial(SeededDevice, 5), partial(HostDevice, check=True)])
def test_a_round_without_one_of_its_events_is_refused(
    make: Callable[[], Device], missing: str, message: str
) -> None:
    device = make()
    with pytest.raises(OrderError, match=message):
        list(run_rounds(device, missing))
    device.close()
