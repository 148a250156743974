"""One contract for every device, after the table in runtime/device/api.py: capture and graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.api import Device, Stream
from tests.helpers.devices import fail_with, launch_all
from tests.helpers.latch import Latch


def test_capture_keeps_calls_and_replay_reads_buffers(device: Device) -> None:
    a, x = device.create_stream("a"), device.allocate("x", (1,), np.int64)
    seen: list[int] = []

    def look(factor: int) -> None:
        seen.append(int(x.array[0]) * factor)

    a.begin_capture()
    for factor in (10, 100):
        a.launch(partial(look, factor), reads=[x])
    graph = a.end_capture()
    a.sync()
    assert seen == []
    for value in (1, 2):
        x.array[0] = value
        graph.launch(a)
        a.sync()
    assert seen == [10, 100, 20, 200]


def test_a_graph_records_and_waits_anew_at_each_launch(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    a, b = streams
    log: list[object] = []
    start, end = device.create_event("start"), device.create_event("end")
    a.begin_capture()
    a.wait(start)
    launch_all(a, log, ["graph"])
    a.record(end)
    graph = a.end_capture()
    assert end.is_done, "the capture must not record"
    for turn in (1, 2):
        with Latch(device, b):
            launch_all(b, log, [f"b{turn}"])
            b.record(start)
            graph.launch(a)
            assert not end.is_done
        b.wait(end)
        launch_all(b, log, [f"b{turn} end"])
        b.sync()
    assert log == ["b1", "graph", "b1 end", "b2", "graph", "b2 end"]


def test_a_graph_can_hold_a_graph_and_run_on_any_stream(streams: tuple[Stream, Stream]) -> None:
    a, b = streams
    log: list[object] = []
    a.begin_capture()
    launch_all(a, log, ["inner"])
    inner = a.end_capture()
    a.begin_capture()
    inner.launch(a)
    launch_all(a, log, ["outer"])
    outer = a.end_capture()
    assert log == []
    outer.launch(b)
    b.sync()
    assert log == ["inner", "outer"]


def test_a_failing_graph_fails_the_stream_it_runs_on(device: Device) -> None:
    a = device.create_stream("a")
    a.begin_capture()
    a.launch(fail_with(ValueError("replayed")))
    graph = a.end_capture()
    a.sync()
    graph.launch(a)
    with pytest.raises(DeviceError, match="replayed"):
        a.sync()


def test_capture_refuses_what_cannot_be_replayed(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    a, b = streams
    event = device.create_event("early")
    refused: dict[str, Callable[[], object]] = {
        "sync": a.sync,
        "sync ": b.sync,
        "sync  ": event.sync,
        "is_done": lambda: event.is_done,
        "allocate": lambda: device.allocate("x", (1,), np.int8),
        "begin_capture": a.begin_capture,
        "begin_capture ": b.begin_capture,
    }
    a.begin_capture()
    for call, make in refused.items():
        message = f"{call.strip()} is not allowed while stream 'a' captures.*end_capture"
        with pytest.raises(DeviceError, match=message):
            make()
    a.end_capture()
    a.sync()


def test_other_streams_run_on_during_a_capture(streams: tuple[Stream, Stream]) -> None:
    a, b = streams
    log: list[object] = []
    a.begin_capture()
    launch_all(b, log, ["b"])
    captured = a.record()
    with pytest.raises(DeviceError, match="is capturing; wait for it after launching the graph"):
        b.wait(captured)
    a.end_capture()
    b.sync()
    assert log == ["b"]


def test_end_capture_needs_begin_capture(streams: tuple[Stream, Stream]) -> None:
    a, b = streams
    a.begin_capture()
    with pytest.raises(DeviceError, match="'b' is not capturing; call begin_capture"):
        b.end_capture()
    a.end_capture()


def test_closing_a_capturing_stream_ends_its_capture(streams: tuple[Stream, Stream]) -> None:
    a, b = streams
    a.begin_capture()
    a.close()
    b.begin_capture()
    b.end_capture()
    b.sync()
