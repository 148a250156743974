"""Phases on the simulated CUDA: when they are kept apart, captured, and let go of."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.errors import BackendError
from runtime.device.cuda import CudaDevice, current_stream
from runtime.resident import phases as phase_module
from runtime.resident.phases import Phases
from tests.helpers.fake_cuda import FakeCuda


class _Session:
    num_rows = 8

    def __init__(self, *, is_capturable: bool) -> None:
        self.is_capturable = is_capturable


def phases_on_cuda(*, is_capturable: bool) -> tuple[CudaDevice, Phases]:
    device = CudaDevice(core=FakeCuda())
    return device, Phases(device, cast(Any, _Session(is_capturable=is_capturable)))


def test_the_first_uses_of_a_phase_keep_apart_from_captures() -> None:
    """A library that captures by itself does so in CUDA's global mode, in its first runs: what the
    other side's thread allocates meanwhile would break it."""
    device, phases = phases_on_cuda(is_capturable=False)
    lock: Any = device.between_captures()
    found: list[bool] = []
    for _ in range(4):
        phases.run("verify", [], lambda: found.append(lock.locked()))
    assert found == [True, True, False, False]
    step: Any = SimpleNamespace(
        shape="chunk",
        mask=SimpleNamespace(shape=(1, 1, 16, 8)),
        enqueue=lambda: found.append(lock.locked()),
    )
    for _ in range(2):
        phases.enqueue(step)
    assert found[4:] == [True, False]
    device.close()


def test_graphs_that_were_not_used_for_long_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes memory of the GPU, and a server meets ever more shapes."""
    monkeypatch.setattr(phase_module, "MOST_KEPT", 2)
    device, phases = phases_on_cuda(is_capturable=True)
    stream = device.create_stream("target")
    runs: list[str] = []

    def use(*keys: str) -> None:
        for key in keys:
            stream.call(lambda key=key: phases.run(key, [], partial(runs.append, key)))

    use("a", "a", "b", "b", "a", "c", "c")
    assert phases.num_graphs == 2
    runs.clear()
    use("a", "c")
    assert runs == []
    use("b")
    assert runs == ["b"]
    phases.forget()
    device.close()


def test_a_phase_that_cannot_be_captured_runs_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine that waits in its calls would fail every request, for want of speed."""
    device, phases = phases_on_cuda(is_capturable=True)
    stream = device.create_stream("target")
    runs: list[str] = []

    def work() -> None:
        runs.append("")
        if device.core.is_capturing(int(current_stream().handle)):
            raise BackendError("it waits for its stream")

    for _ in range(4):
        stream.call(lambda: phases.run("verify", [], work))
    assert len(runs) == 5
    assert phases.num_graphs == 0
    assert [record.message.partition(", so")[0] for record in caplog.records] == [
        "verify does not become a CUDA graph"
    ]
    device.close()
