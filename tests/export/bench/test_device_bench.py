"""Timing a plan: with a fake of what polygraphy drives, and on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import export.check.runners
from engines.errors import BackendError
from engines.manifest import TARGET, Limits
from engines.tensors import DType
from export.bench.calls import timed_calls
from export.bench.device import DeviceEngine
from export.bench.measure import BenchOptions, bench
from export.check.runners import OpenPlan
from export.tensorrt.vendor import Vendor
from plugins.vendor_log import Messages
from tests.export.bench.manifests import manifest_for
from tests.helpers.compiled_bundle import compiled_bundle

pytestmark = pytest.mark.polygraphy
LIMITS = Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6)


class FakeStream:
    ptr = 7
    synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1


class FakeContext:
    def __init__(self, answers: list[bool]) -> None:
        self.answers = answers

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == FakeStream.ptr
        return self.answers.pop(0)


class FakeDeviceArray:
    """Host memory in the part of ``polygraphy.cuda.DeviceArray``; counts what is not freed."""

    alive = 0

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype.name
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        self.content = b""

    def __enter__(self) -> FakeDeviceArray:
        FakeDeviceArray.alive += 1
        return self

    def __exit__(self, *_error: object) -> None:
        FakeDeviceArray.alive -= 1

    def copy_from(self, array: np.ndarray) -> None:
        assert array.flags["C_CONTIGUOUS"]
        assert array.nbytes == self.nbytes
        self.content = array.tobytes()


def open_fake_plan(dtype: DType = DType.FLOAT16) -> OpenPlan:
    manifest = manifest_for(TARGET, LIMITS, compiled=True, dtype=dtype)
    assert manifest.plan is not None
    vendor = Vendor(object(), "tensorrt-rtx", "1.7.1.116", is_rtx=True)
    return OpenPlan(manifest, manifest.plan, object(), Messages(), vendor)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> DeviceEngine:
    dtype = getattr(request, "param", DType.FLOAT16)
    monkeypatch.setattr("export.bench.device.open_plan", lambda *_: open_fake_plan(dtype))
    monkeypatch.setattr("polygraphy.cuda.DeviceArray", FakeDeviceArray)
    nothing: Any = object()
    return DeviceEngine(nothing, TARGET)


def active(engine: DeviceEngine, answers: list[bool], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runner after activation, without the GPU that activation needs."""
    from polygraphy.backend.trt import TrtRunner

    bindings: list[object] = []

    def bind(self: Any, feed: Any, copy_outputs_to_host: bool) -> dict[str, Any]:
        assert not copy_outputs_to_host, "the caches would be copied to the host"
        bindings.append(feed)
        self.inference_time = 99.0
        return {"logits": "on the device"}

    monkeypatch.setattr(TrtRunner, "infer_impl", bind)
    timed = timed_calls(engine.plan.manifest, batch=1, length=None)[1]
    runner = engine.runner(timed)
    assert runner.optimization_profile == timed.profile == 1
    runner.context, runner.stream, runner.bindings = FakeContext(answers), FakeStream(), bindings
    monkeypatch.setattr(runner, "is_active", True)
    return runner


def test_the_first_call_binds_and_the_others_are_timed_alone(
    engine: DeviceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = active(engine, [True, True], monkeypatch)
    for expected in (0, 1, 2):
        outputs = runner.infer({}, check_inputs=False)
        assert outputs == {"logits": "on the device"}
        assert runner.stream.synchronized == expected
    assert len(runner.bindings) == 1
    assert runner.last_inference_time() != 99.0
    runner.is_active = False


def test_an_engine_that_refuses_to_run_says_why(
    engine: DeviceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = active(engine, [False], monkeypatch)
    runner.infer({}, check_inputs=False)
    monkeypatch.setattr(
        export.check.runners.layers, "refusals", lambda _trt: ["ssd::Verify has no kernel"]
    )
    with pytest.raises(BackendError, match="the target plan failed: ssd::Verify has no kernel"):
        runner.infer({}, check_inputs=False)
    runner.is_active = False


@pytest.mark.parametrize("engine", [DType.FLOAT16, DType.BFLOAT16], indirect=True)
def test_all_inputs_stand_on_the_device_until_the_engine_is_closed(engine: DeviceEngine) -> None:
    manifest = engine.plan.manifest
    timed = timed_calls(manifest, batch=2, length=50)[1]
    feed = engine.feed(timed)
    assert list(feed) == [spec.name for spec in manifest.inputs]
    for spec in manifest.inputs:
        array = feed[spec.name]
        assert isinstance(array, FakeDeviceArray), "polygraphy cannot alias anything else"
        assert array.dtype == spec.dtype.value
        assert array.shape[0] == 2
        if spec.dtype is DType.BFLOAT16:
            assert not any(array.content)
    assert np.frombuffer(feed["write_at"].content, np.int64).tolist() == [50, 50]
    assert FakeDeviceArray.alive == len(feed)
    engine.close()
    assert FakeDeviceArray.alive == 0


@pytest.mark.gpu
@pytest.mark.rtx
def test_a_plan_is_timed_on_the_gpu() -> None:
    options = BenchOptions(iterations=5, warm_up=2)
    for engine in bench(compiled_bundle("fp16"), options).engines:
        assert engine.threads is None
        assert all(0 < call.latency.min_s <= call.latency.p99_s for call in engine.calls)
