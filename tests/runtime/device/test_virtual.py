"""The virtual device's own promise: what a program takes is its critical path. The rest is in
tests/contract."""

from __future__ import annotations

from functools import partial

import pytest

from engines.errors import DeviceError
from runtime.device.virtual import VirtualDevice


@pytest.fixture
def device():
    opened = VirtualDevice(check=True)
    yield opened
    opened.close()


def work(device: VirtualDevice, seconds: float):
    return partial(device.clock.spend, seconds)


def test_streams_work_side_by_side(device: VirtualDevice) -> None:
    a, b = device.create_stream("a"), device.create_stream("b")
    a.launch(work(device, 3.0))
    a.launch(work(device, 1.0))
    b.launch(work(device, 2.0))
    b.sync()
    assert device.clock.host_s == 2.0
    a.sync()
    assert device.clock.host_s == 4.0


def test_a_waiting_stream_begins_at_the_mark_and_not_before(device: VirtualDevice) -> None:
    """Guards against times that follow the order in which steps happen to run."""
    a, b = device.create_stream("a"), device.create_stream("b")
    b.launch(work(device, 1.0))
    a.launch(work(device, 5.0))
    b.wait(a.record())
    b.launch(work(device, 1.0))
    b.sync()
    assert device.clock.host_s == 6.0


def test_a_mark_that_is_long_reached_delays_nobody(device: VirtualDevice) -> None:
    a, b = device.create_stream("a"), device.create_stream("b")
    a.launch(work(device, 1.0))
    early = a.record()
    a.launch(work(device, 9.0))
    b.launch(work(device, 4.0))
    b.wait(early)
    b.launch(work(device, 1.0))
    b.sync()
    assert device.clock.host_s == 5.0


def test_work_begins_when_the_host_has_launched_it(device: VirtualDevice) -> None:
    """A gap in which the host reads the outcome must show: it is what running ahead saves."""
    a = device.create_stream("a")
    a.launch(work(device, 2.0))
    a.sync()
    device.clock.spend(0.5)
    a.launch(work(device, 2.0))
    a.sync()
    assert device.clock.host_s == 4.5


def test_a_poll_takes_the_host_to_the_mark(device: VirtualDevice) -> None:
    a = device.create_stream("a")
    a.launch(work(device, 2.0))
    event = a.record()
    assert device.clock.host_s == 0.0
    assert event.is_done
    assert device.clock.host_s == 2.0


def test_patience_that_ends_has_taken_its_time(device: VirtualDevice) -> None:
    a = device.create_stream("a")
    device.hold(a)
    event = a.record()
    assert not event.sync(timeout_s=2.5)
    assert device.clock.host_s == 2.5
    device.release(a)


def test_now_is_the_time_of_who_asks(device: VirtualDevice) -> None:
    a = device.create_stream("a")
    seen: list[float] = []
    a.launch(work(device, 2.0))
    a.launch(lambda: seen.append(device.clock.now_s))
    assert device.clock.now_s == 0.0
    a.sync()
    assert seen == [2.0]
    assert device.clock.now_s == 2.0


def test_work_that_fails_has_taken_its_time(device: VirtualDevice) -> None:
    a, b = device.create_stream("a"), device.create_stream("b")

    def fail() -> None:
        device.clock.spend(1.0)
        raise ValueError("broken")

    a.launch(fail)
    with pytest.raises(DeviceError, match="broken"):
        a.sync()
    assert device.clock.host_s == 1.0
    b.launch(work(device, 1.0))
    b.sync()
    assert device.clock.host_s == 2.0, "what comes after is no longer that work's time"


def test_time_does_not_run_backwards(device: VirtualDevice) -> None:
    with pytest.raises(DeviceError, match="-1"):
        device.clock.spend(-1)
