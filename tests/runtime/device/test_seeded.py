"""The interleaver: who may go when, and that its choices reveal missing events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.seeded import SeededDevice, eager, lazy, weighted


def run_racy_program(device: SeededDevice) -> list[int]:
    """Adds 1 on one stream and doubles on another, three times, without any event."""
    a, b = device.create_stream("a"), device.create_stream("b")
    x = device.allocate("x", (1,), np.int64)
    seen: list[int] = []

    def add() -> None:
        x.array[0] += 1

    def double() -> None:
        x.array[0] *= 2
        seen.append(int(x.array[0]))

    for _ in range(3):
        a.launch(add)
        b.launch(double)
    a.sync()
    b.sync()
    device.close()
    return seen


def test_seeds_reveal_a_missing_event_and_repeat() -> None:
    """Two streams of three steps can be mixed in 20 ways with 20 different results or fewer."""
    results = [tuple(run_racy_program(SeededDevice(seed, check=False))) for seed in range(60)]
    again = [tuple(run_racy_program(SeededDevice(seed, check=False))) for seed in range(60)]
    assert results == again
    assert len(set(results)) >= 5


def test_the_extreme_choosers_are_as_late_and_as_early_as_can_be() -> None:
    logs: dict[str, list[str]] = {}
    for name, chooser in (("lazy", lazy), ("eager", eager)):
        log = logs[name] = []
        device = SeededDevice(chooser)
        a, b, c = (device.create_stream(stream) for stream in "abc")
        c.launch(partial(log.append, "c"))
        a.launch(partial(log.append, "a"))
        event = a.record()
        b.wait(event)
        b.launch(partial(log.append, "b"))
        log.append("host")
        b.sync()
        log.append("synced")
        device.close()
    assert logs == {
        "lazy": ["host", "a", "b", "synced"],
        "eager": ["c", "a", "b", "host", "synced"],
    }


def test_the_chooser_sees_the_host_and_the_ready_streams_needed_ones_first() -> None:
    asked: list[list[str]] = []

    def choose(names: Sequence[str]) -> int:
        asked.append(list(names))
        return 0

    device = SeededDevice(choose)
    a, b, c = (device.create_stream(name) for name in "abc")
    a.launch(lambda: None)
    b.launch(lambda: None)
    c.wait(b.record())
    asked.clear()
    c.sync()
    # b's work and its mark, then c's wait and its tail; a is never needed.
    assert asked == [["host", "a", "b"], ["b", "a"], ["b", "a"], ["c", "a"], ["c", "a"]]
    device.close()


@pytest.mark.parametrize("index", [-1, 5])
def test_a_chooser_out_of_range_is_refused(index: int) -> None:
    calls = iter([index])
    device = SeededDevice(lambda names: next(calls, 0))  # noqa: ARG005 - a Chooser
    a = device.create_stream("a")
    with pytest.raises(DeviceError, match=rf"returned {index} for \['host', 'a'\]"):
        a.launch(lambda: None)
    device.close()


def test_a_deadlock_says_who_waits_for_what() -> None:
    device = SeededDevice(3)
    a, b = device.create_stream("a"), device.create_stream("b")
    device.hold(a)
    a.launch(lambda: None)
    b.wait(a.record(device.create_event("decided")))
    with pytest.raises(DeviceError) as info:
        b.sync()
    assert str(info.value) == (
        "deadlock, nothing can run: the host waits for 'its last work' of stream 'b'; "
        "stream 'a' is held; stream 'b' waits for 'decided' of stream 'a'"
    )
    device.release(a)
    b.sync()
    device.close()


def test_a_held_stream_finishes_what_came_before() -> None:
    device, log = SeededDevice(lazy), list[int]()
    a = device.create_stream("a")
    a.launch(lambda: log.append(1))
    before = a.record()
    device.hold(a)
    device.hold(a)
    a.launch(lambda: log.append(2))
    before.sync()
    assert log == [1]
    device.release(a)
    a.sync()
    assert log == [1, 2]
    a.close()
    with pytest.raises(DeviceError, match="no open stream 'a'"):
        device.hold(a)
    device.close()


def test_ctrl_c_inside_work_stops_the_host_at_once_and_fails_the_stream() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    device = SeededDevice(lazy)
    a, b = device.create_stream("a"), device.create_stream("b")
    a.launch(interrupt)
    b.wait(a.record())
    with pytest.raises(KeyboardInterrupt):
        b.sync()
    with pytest.raises(DeviceError, match="KeyboardInterrupt"):
        b.sync()
    device.close()


def test_close_frees_the_streams_even_when_the_chooser_raises() -> None:
    """A test framework may end a run inside the chooser."""

    def choose(names: Sequence[str]) -> int:  # noqa: ARG001 - a Chooser
        raise RuntimeError("no more data")

    device = SeededDevice(choose)
    a, b = device.create_stream("a"), device.create_stream("b")
    for stream in (a, b):
        with pytest.raises(RuntimeError):
            stream.launch(lambda: None)
    with pytest.raises(RuntimeError):
        device.close()
    for stream in (a, b):
        with pytest.raises(DeviceError, match="is closed"):
            stream.sync()


@pytest.mark.parametrize("seed", range(20))
def test_weighted_starves_nobody_for_ever(seed: int) -> None:
    """The rarest of four names has odds of at least 1 : 3000."""
    choose = weighted(random.Random(seed))
    names = ["host", "a", "b", "c"]
    seen: set[int] = set()
    for _ in range(30_000):
        seen.add(choose(names))
        if len(seen) == len(names):
            break
    assert seen == {0, 1, 2, 3}
