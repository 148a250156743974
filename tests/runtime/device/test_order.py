"""What the happens-before checker accepts and refuses, and what its messages say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.api import Access, Buffer, Stream
from runtime.device.order import OrderError
from runtime.device.seeded import SeededDevice, lazy


@pytest.fixture
def device() -> Iterator[SeededDevice]:
    opened = SeededDevice(lazy)
    yield opened
    opened.close()


@pytest.fixture
def a(device: SeededDevice) -> Stream:
    return device.create_stream("a")


@pytest.fixture
def b(device: SeededDevice) -> Stream:
    return device.create_stream("b")


@pytest.fixture
def x(device: SeededDevice) -> Buffer:
    return device.allocate("x", (8,), np.int8)


def read(stream: Stream, *accesses: Access, label: str = "read") -> None:
    stream.launch(lambda: None, reads=accesses, label=label)


def write(stream: Stream, *accesses: Access, label: str = "write") -> None:
    stream.launch(lambda: None, writes=accesses, label=label)


def test_unordered_accesses_are_refused_unless_both_read(a: Stream, b: Stream, x: Buffer) -> None:
    write(a, x.rows(0, 2))
    read(a, x.rows(2, 4))
    for access in (read, write):
        with pytest.raises(OrderError, match=r"x\[0:1\], 'write' on stream 'a' writes it"):
            access(b, x.rows(0, 1))
    with pytest.raises(OrderError, match=r"writes x\[2:4\], 'read' on stream 'a' reads it"):
        write(b, x.rows(2, 8))
    read(b, x.rows(2, 4))


def test_rows_that_do_not_overlap_need_no_order(a: Stream, b: Stream, x: Buffer) -> None:
    write(a, x.rows(0, 3))
    write(b, x.rows(3, 8))
    write(b, x.rows(2, 2))
    write(a, x.rows(1, 2))
    with pytest.raises(OrderError, match=r"x\[2:3\]"):
        read(b, x.rows(2, 3))


def test_buffers_are_told_apart(device: SeededDevice, a: Stream, b: Stream, x: Buffer) -> None:
    y = device.allocate("x", (8,), np.int8)
    write(a, x)
    write(b, y)


def test_every_reader_since_the_last_write_counts(
    device: SeededDevice, a: Stream, b: Stream, x: Buffer
) -> None:
    """Keeping only the latest reader would lose the others."""
    c = device.create_stream("c")
    read(a, x, label="first reader")
    read(b, x, label="second reader")
    c.wait(b.record())
    with pytest.raises(OrderError, match="first reader"):
        write(c, x)
    c.wait(a.record())
    write(c, x)


def test_readers_of_some_rows_are_not_readers_of_all(
    device: SeededDevice, a: Stream, b: Stream, x: Buffer
) -> None:
    """Guards the history of rows that are split: what comes later belongs to one part."""
    c = device.create_stream("c")
    read(a, x)
    read(b, x.rows(0, 2))
    c.wait(a.record())
    write(c, x.rows(2, 8))
    with pytest.raises(OrderError, match=r"x\[0:2\], 'read' on stream 'b'"):
        write(c, x.rows(0, 2))


def test_a_wait_orders_and_is_passed_on(
    device: SeededDevice, a: Stream, b: Stream, x: Buffer
) -> None:
    c = device.create_stream("c")
    write(a, x)
    b.wait(a.record())
    c.wait(b.record())
    write(c, x)


def test_a_mark_covers_only_what_came_before_it(a: Stream, b: Stream, x: Buffer) -> None:
    write(a, x.rows(0, 4))
    event = a.record()
    write(a, x.rows(4, 8), label="too late")
    b.wait(event)
    read(b, x.rows(0, 4))
    with pytest.raises(OrderError, match="too late"):
        read(b, x.rows(4, 8))


def test_a_wait_before_the_record_orders_nothing(
    device: SeededDevice, a: Stream, b: Stream, x: Buffer
) -> None:
    event = device.create_event()
    b.wait(event)
    write(a, x)
    a.record(event)
    with pytest.raises(OrderError):
        read(b, x)


def test_the_host_needs_a_sync(device: SeededDevice, a: Stream, x: Buffer) -> None:
    write(a, x, label="verify")
    with pytest.raises(OrderError, match=r"'peek' on the host reads x.*let the host sync it"):
        device.host_access(reads=[x], label="peek")
    a.sync()
    device.host_access(reads=[x], writes=[x])
    read(a, x, label="verify again")
    done = a.record()
    with pytest.raises(OrderError, match="'verify again' on stream 'a' reads it"):
        device.host_access(writes=[x])
    done.sync()
    device.host_access(writes=[x])


def test_a_poll_that_finds_the_event_done_orders_like_a_sync(
    device: SeededDevice, a: Stream, x: Buffer
) -> None:
    write(a, x)
    event = a.record()
    assert not event.is_done
    with pytest.raises(OrderError):
        device.host_access(reads=[x])
    while not event.is_done:
        pass
    device.host_access(reads=[x])


def test_launches_come_after_what_the_host_has_seen(
    device: SeededDevice, a: Stream, b: Stream, x: Buffer
) -> None:
    write(a, x)
    a.sync()
    device.host_access(writes=[x], label="reset")
    write(b, x)


def test_a_closed_stream_is_over(device: SeededDevice, a: Stream, b: Stream, x: Buffer) -> None:
    """Recovery after a failure: close, zero the caches, go on with a new stream."""

    def fail() -> None:
        raise ValueError

    a.launch(fail, writes=[x])
    a.close()
    device.host_access(writes=[x], label="zero")
    write(b, x)


def test_a_failed_sync_orders_too(device: SeededDevice, a: Stream, x: Buffer) -> None:
    def fail() -> None:
        raise ValueError

    a.launch(fail, writes=[x])
    with pytest.raises(DeviceError):
        a.sync()
    device.host_access(writes=[x], label="zero")


def test_a_refused_access_leaves_no_trace(a: Stream, b: Stream, x: Buffer) -> None:
    """Otherwise the correct call that follows would be refused because of the wrong one."""
    ran: list[str] = []
    write(a, x.rows(0, 4), label="first")
    with pytest.raises(OrderError):
        b.launch(lambda: ran.append("b"), reads=[x.rows(4, 8)], writes=[x], label="wrong")
    write(a, x, label="second")
    b.sync()
    assert ran == []


def test_graph_replays_are_checked_at_each_launch(a: Stream, b: Stream, x: Buffer) -> None:
    b.begin_capture()
    read(b, x, label="captured read")
    graph = b.end_capture()
    graph.launch(b)
    b.sync()
    write(a, x, label="write")
    with pytest.raises(OrderError, match="'captured read' on stream 'b' reads x"):
        graph.launch(b)
    b.wait(a.record())
    graph.launch(b)


def test_the_message_names_both_sides_the_rows_and_the_missing_event(
    device: SeededDevice, a: Stream, b: Stream, x: Buffer
) -> None:
    write(a, x.rows(0, 4), label="verify")
    with pytest.raises(OrderError) as missing:
        read(b, x.rows(2, 8), label="commit")
    assert str(missing.value) == (
        "'commit' on stream 'b' reads x[2:4], 'verify' on stream 'a' writes it, and nothing "
        "orders them: record an event on stream 'a' after 'verify' and let stream 'b' wait for "
        "it before 'commit'"
    )
    a.record(device.create_event("decided"))
    with pytest.raises(OrderError) as unused:
        read(b, x.rows(2, 8), label="commit")
    assert str(unused.value).endswith(
        "nothing orders them: 'decided' was recorded after 'verify', but stream 'b' did not wait "
        "for it before 'commit'"
    )


def test_work_without_a_label_is_named_after_its_function(a: Stream, b: Stream, x: Buffer) -> None:
    def fill_cache() -> None:
        pass

    a.launch(fill_cache, writes=[x])
    with pytest.raises(OrderError, match="fill_cache"):
        b.launch(fill_cache, writes=[x])


def test_without_the_checker_nothing_is_refused() -> None:
    device = SeededDevice(lazy, check=False)
    a, b = device.create_stream("a"), device.create_stream("b")
    x = device.allocate("x", (8,), np.int8)
    write(a, x)
    write(b, x)
    device.host_access(writes=[x])
    device.close()
