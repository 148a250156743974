"""One contract for every device, after the table in runtime/device/api.py: order and errors."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

from engines.errors import BackendError, DeviceError
from runtime.device.api import Buffer, Device, Event, Stream
from tests.helpers.devices import fail_with, launch_all
from tests.helpers.latch import Latch


def sync_often(stream: Stream, x: Buffer, event: Event, num_launches: int) -> None:
    """Launches with accesses on single rows, so that the checker has something to keep."""
    for i in range(num_launches):
        rows = x.rows(i % 8, i % 8 + 1)
        stream.launch(lambda: None, reads=[rows], writes=[x] if i % 50 == 0 else [rows])
        stream.record(event)
        if i % 100 == 0:
            event.sync()
    stream.sync()


def test_a_stream_runs_first_in_first_out(device: Device) -> None:
    stream = device.create_stream("a")
    log: list[object] = []
    launch_all(stream, log, range(100))
    stream.sync()
    assert log == list(range(100))


def test_streams_are_unordered_without_an_event(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    """Guards against one queue behind all streams, which would hide every missing event."""
    a, b = streams
    log: list[object] = []
    with Latch(device, a):
        launch_all(a, log, ["a"])
        launch_all(b, log, ["b"])
        b.sync()
        assert log == ["b"]
    a.sync()
    assert log == ["b", "a"]


def test_wait_holds_back_later_work_only(device: Device, streams: tuple[Stream, Stream]) -> None:
    a, b = streams
    log: list[object] = []
    with Latch(device, a):
        launch_all(a, log, ["a"])
        event = a.record()
        launch_all(b, log, ["b before"])
        before = b.record()
        b.wait(event)
        launch_all(b, log, ["b after"])
        before.sync()
        assert log == ["b before"]
        assert not event.is_done
    b.sync()
    assert log == ["b before", "a", "b after"]


def test_record_marks_the_tail_now(device: Device) -> None:
    """Work launched after record does not belong to the mark."""
    a = device.create_stream("a")
    log: list[object] = []
    launch_all(a, log, ["before"])
    event = a.record()
    with Latch(device, a):
        launch_all(a, log, ["after"])
        event.sync()
        assert event.is_done
        assert log == ["before"]


def test_a_wait_keeps_the_mark_it_was_made_with(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    """Recording an event again must not move waits that were queued before."""
    a, b = streams
    log: list[object] = []
    event = a.record()
    b.wait(event)
    with Latch(device, a):
        assert a.record(event) is event
        launch_all(b, log, ["b"])
        b.sync()
        assert log == ["b"]
        assert not event.is_done


def test_a_wait_uses_the_last_record_before_it(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    a, b = streams
    log: list[object] = []
    event = a.record()
    with Latch(device, a):
        launch_all(a, log, ["a"])
        a.record(event)
        b.wait(event)
        launch_all(b, log, ["b"])
        assert not event.is_done
    b.sync()
    assert log == ["a", "b"]


def test_an_event_can_move_to_another_stream(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    a, b = streams
    event = device.create_event("moving")
    with Latch(device, a):
        a.record(event)
        b.record(event)
        event.sync()
        assert event.is_done


def test_an_event_never_recorded_holds_nobody(device: Device) -> None:
    event, a = device.create_event(), device.create_stream("a")
    log: list[object] = []
    assert event.is_done
    event.sync()
    a.wait(event)
    launch_all(a, log, ["a"])
    a.sync()
    assert log == ["a"]


def test_polling_is_done_ends(streams: tuple[Stream, Stream]) -> None:
    """A host that polls must get on, whatever the interleaver would rather do."""
    a, b = streams
    log: list[object] = []
    launch_all(a, log, ["a"])
    b.wait(a.record())
    launch_all(b, log, ["b"])
    event = b.record()
    while not event.is_done:
        pass
    assert log == ["a", "b"]


def test_work_sees_what_the_host_did_before_launching_it(device: Device) -> None:
    buffer, a = device.allocate("x", (4,), np.int64), device.create_stream("a")
    buffer.array[:] = 3

    def double() -> None:
        buffer.array[:] *= 2

    a.launch(double, reads=[buffer], writes=[buffer])
    a.sync()
    assert buffer.array.tolist() == [6] * 4


def test_ten_thousand_launches_keep_no_memory(device: Device) -> None:
    """Every kept launch, mark or clock would show as at least 10,000 x 50 bytes."""
    a, x, event = (
        device.create_stream("a"),
        device.allocate("x", (8,), np.int8),
        device.create_event("e"),
    )
    sync_often(a, x, event, 500)
    tracemalloc.start()
    try:
        sync_often(a, x, event, 100)
        before = tracemalloc.get_traced_memory()[0]
        sync_often(a, x, event, 10_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100_000


def test_an_error_sticks_and_later_work_is_skipped(device: Device) -> None:
    a = device.create_stream("a")
    error, log = ValueError("seven"), list[object]()
    a.launch(fail_with(error), label="verify")
    launch_all(a, log, ["skipped"])
    event = a.record()
    for sync in (a.sync, a.sync, event.sync, a.sync):
        with pytest.raises(DeviceError, match=r"'verify' on stream 'a'.*ValueError: seven") as info:
            sync()
        assert info.value.__cause__ is error
    assert event.is_done
    launch_all(a, log, ["skipped too"])
    with pytest.raises(DeviceError, match="seven"):
        a.sync()
    assert log == []


def test_an_error_of_ours_surfaces_as_it_is(device: Device) -> None:
    """And does not gain a frame for every sync that raises it."""
    a = device.create_stream("a")
    error = BackendError("the engine refused")
    a.launch(fail_with(error))
    depths = []
    for _ in range(3):
        with pytest.raises(BackendError) as info:
            a.sync()
        assert info.value is error
        depths.append(len(info.traceback))
    assert depths[0] == depths[1] == depths[2]


def test_even_system_exit_only_fails_its_stream(device: Device) -> None:
    a = device.create_stream("a")
    # In the host's own thread it also surfaces at once, wherever the interleaver runs it.
    with suppress(SystemExit):
        a.launch(fail_with(SystemExit(3)))
    with suppress(SystemExit, DeviceError):
        a.sync()
    with pytest.raises(DeviceError, match="SystemExit"):
        a.sync()


def test_a_mark_before_the_failure_is_sound(streams: tuple[Stream, Stream]) -> None:
    a, b = streams
    log: list[object] = []
    sound = a.record()
    a.launch(fail_with(ValueError("late")))
    sound.sync()
    b.wait(sound)
    launch_all(b, log, ["b"])
    b.sync()
    assert log == ["b"]


def test_a_stream_that_waits_for_a_failed_mark_fails_too(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    """Neither a deadlock nor work on data that was never written; and it passes on."""
    a, b = streams
    c, bystander = device.create_stream("c"), device.create_stream("bystander")
    error, log = ValueError("seven"), list[object]()
    a.launch(fail_with(error), label="verify")
    failed = a.record()
    launch_all(b, log, ["b before"])
    b.wait(failed)
    launch_all(b, log, ["skipped"])
    c.wait(b.record())
    launch_all(c, log, ["skipped"])
    launch_all(bystander, log, ["bystander"])
    for stream in (c, b):
        with pytest.raises(DeviceError, match="'verify' on stream 'a'") as info:
            stream.sync()
        assert info.value.__cause__ is error
    bystander.sync()
    assert sorted(map(str, log)) == ["b before", "bystander"]


def test_a_wait_is_part_of_what_sync_waits_for(streams: tuple[Stream, Stream]) -> None:
    """Guards the shortcut of a sync right after a record: the mark must still be the tail."""
    a, b = streams
    a.launch(fail_with(ValueError("seven")))
    failed = a.record()
    b.record().sync()
    b.sync()
    b.wait(failed)
    with pytest.raises(DeviceError, match="seven"):
        b.sync()
