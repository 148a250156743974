"""One contract for every device: buffers, misuse and the end of streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.api import Device, Event, Stream
from runtime.device.host import HostDevice
from tests.helpers.devices import fail_with, launch_all
from tests.helpers.latch import Latch


def test_close_is_idempotent_and_later_calls_say_so(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    a, b = streams
    x = device.allocate("x", (1,), np.int8)
    a.close()
    a.close()
    with pytest.raises(DeviceError, match="launch: stream 'a' is closed"):
        a.launch(lambda: None)
    b.sync()
    device.close()
    device.close()
    with pytest.raises(DeviceError, match="sync: stream 'b' is closed"):
        b.sync()
    with pytest.raises(DeviceError, match=r"device '.*' is closed"):
        device.create_stream("late")
    with pytest.raises(DeviceError, match=r"device '.*' is closed"):
        device.allocate("late", (1,), np.int8)
    assert x.array.tolist() == [0], "buffers outlive their device"


def test_close_after_a_failure_is_silent_and_the_name_is_free_again(device: Device) -> None:
    a = device.create_stream("a")
    a.launch(fail_with(ValueError("unseen")))
    a.close()
    log: list[object] = []
    again = device.create_stream("a")
    launch_all(again, log, ["recovered"])
    again.sync()
    assert log == ["recovered"]


def test_close_does_not_wait_for_an_event_of_another_stream(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    a, b = streams
    log: list[object] = []
    with Latch(device, a):
        b.wait(a.record())
        launch_all(b, log, ["dropped"])
        b.close()
        assert log == []


def test_who_waits_for_a_closed_stream_fails(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    """Dropping work must not leave its waiters asleep, nor let them pass."""
    a, b = streams
    c = device.create_stream("c")
    log: list[object] = []
    with Latch(device, a):
        b.wait(a.record())
        dropped = b.record(device.create_event("dropped"))
        c.wait(dropped)
        launch_all(c, log, ["never"])
        b.close()
        for sync in (dropped.sync, c.sync):
            with pytest.raises(DeviceError, match="'b' was closed before it reached 'dropped'"):
                sync()
    assert log == []


def test_close_with_queued_work_returns(device: Device, streams: tuple[Stream, Stream]) -> None:
    """Each item runs or is dropped, in order; a later one never without the earlier ones."""
    a, _ = streams
    log: list[object] = []
    launch_all(a, log, range(200))
    device.close()
    assert log == list(range(len(log)))


def test_work_must_not_call_the_device(device: Device, streams: tuple[Stream, Stream]) -> None:
    """Syncing inside work would deadlock; launching there would have no place in the order."""
    a, b = streams
    event = device.create_event()
    calls: list[Callable[[], object]] = [
        lambda: b.launch(lambda: None),
        b.record,
        lambda: b.wait(event),
        b.sync,
        b.begin_capture,
        b.close,
        event.sync,
        lambda: event.is_done,
        lambda: device.allocate("x", (1,), np.int8),
        lambda: device.create_stream("c"),
        device.host_access,
        device.close,
    ]
    refusals: list[str] = []

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except DeviceError as error:
            refusals.append(str(error))

    for call in calls:
        a.launch(partial(attempt, call))
    a.sync()
    assert len(refusals) == len(calls)
    assert all("inside work" in refusal for refusal in refusals)


def test_names_of_open_streams_differ(device: Device) -> None:
    device.create_stream("a")
    for taken in ("a", "host"):
        with pytest.raises(DeviceError, match=f"has '{taken}' already"):
            device.create_stream(taken)


def test_events_and_graphs_of_another_device_are_refused(device: Device) -> None:
    a, other = device.create_stream("a"), HostDevice("other")
    foreign = other.create_stream("a")
    a.begin_capture()
    graph = a.end_capture()
    try:
        uses: list[Callable[[Event], object]] = [a.wait, a.record]
        for use in uses:
            with pytest.raises(DeviceError, match="an event of another device"):
                use(foreign.record())
        with pytest.raises(DeviceError, match="of another device"):
            graph.launch(foreign)
    finally:
        other.close()


def test_buffers_are_zeroed_contiguous_and_aligned(device: Device) -> None:
    for shape, dtype in (((3, 5), np.float32), ((7,), np.int8), ((0, 4), np.float16)):
        buffer = device.allocate("x", shape, dtype)
        assert (buffer.name, buffer.shape, buffer.dtype) == ("x", shape, np.dtype(dtype))
        array = buffer.array
        assert array is buffer.array
        assert array.shape == shape
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not array.any()
        assert buffer.nbytes == array.nbytes
        assert buffer.address == array.ctypes.data
        assert buffer.address % 64 == 0


def test_rows_stay_inside_the_buffer(device: Device) -> None:
    x = device.allocate("x", (4, 2), np.int8)
    rows = x.rows(1, 3)
    assert (rows.buffer, rows.start, rows.stop) == (x, 1, 3)
    x.rows(4, 4)
    for start, stop in ((-1, 2), (2, 5), (3, 2)):
        with pytest.raises(DeviceError, match=f"'x' has rows 0 to 4, not {start} to {stop}"):
            x.rows(start, stop)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((), np.int8, "at least one axis"),
        ((2, -1), np.int8, "no negative size"),
        ((2,), np.object_, "holds Python objects"),
        ((2**60,), np.float32, "no memory for buffer 'x'"),
        ((2**80,), np.float32, "no memory for buffer 'x'"),
    ],
)
def test_what_cannot_be_allocated_is_refused(
    device: Device, shape: tuple[int, ...], dtype: type[np.generic], message: str
) -> None:
    with pytest.raises(DeviceError, match=message):
        device.allocate("x", shape, dtype)
