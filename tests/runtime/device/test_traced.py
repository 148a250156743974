"""What a traced device tells; that it behaves like its inner one is the contract suite's matter."""

from __future__ import annotations

from itertools import count

import pytest

from engines.errors import BackendError
from runtime.device.seeded import SeededDevice, eager
from runtime.device.traced import TracedDevice


def traced() -> tuple[TracedDevice, list[tuple[str, str, float, float]]]:
    told: list[tuple[str, str, float, float]] = []
    ticks = count()
    device = TracedDevice(
        SeededDevice(eager), lambda *facts: told.append(facts), lambda: float(next(ticks))
    )
    return device, told


def test_tells_when_each_work_of_each_stream_ran() -> None:
    device, told = traced()
    target, draft = device.create_stream("target"), device.create_stream("draft")
    target.launch(lambda: None, label="verify")
    draft.launch(lambda: None, label="prepare")
    target.sync()
    draft.sync()
    assert sorted(told) == [("draft", "prepare", 2.0, 3.0), ("target", "verify", 0.0, 1.0)]


def test_work_that_failed_is_told_and_its_error_kept() -> None:
    device, told = traced()
    stream = device.create_stream("target")

    def fail() -> None:
        raise BackendError("broken")

    stream.launch(fail, label="verify")
    with pytest.raises(BackendError, match="broken"):
        stream.sync()
    assert told == [("target", "verify", 0.0, 1.0)]


def test_a_replayed_graph_is_told_each_time() -> None:
    device, told = traced()
    stream = device.create_stream("target")
    stream.begin_capture()
    stream.launch(lambda: None, label="verify")
    graph = stream.end_capture()
    assert told == []
    graph.launch(stream)
    graph.launch(stream)
    stream.sync()
    assert [(lane, label) for lane, label, _, _ in told] == [("target", "verify")] * 2


def test_a_label_is_made_up_where_work_has_none() -> None:
    device, told = traced()
    stream = device.create_stream("target")

    def settle() -> None:
        pass

    stream.launch(settle)
    stream.sync()
    assert told[0][1].endswith("settle")
