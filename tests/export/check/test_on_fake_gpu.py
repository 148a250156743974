"""bench, parity and verification of a compiled bundle, on a GPU that is host memory.

Everything but the hardware is real: the bundle, polygraphy's TensorRT runner, our own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import export.check.runners as runners
from engines.bundle import Bundle
from engines.errors import BackendError
from engines.manifest import DRAFT, TARGET
from export.bench.calls import profiles_of
from export.bench.data_loader import PROMPT, feeds
from export.bench.measure import BenchOptions, bench
from export.check.parity import ANSWER_TOKENS, compare_plans
from export.check.scoring import scoring
from export.tensorrt.capabilities import LocalGpu
from export.tensorrt.vendor import Vendor
from export.tensorrt.vendor import load as load_vendor
from runtime.llm import score
from tests.helpers.compiled_bundle import compiled_bundle
from tests.helpers.fake_gpu import FakeCuda, FakeEngine
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = [pytest.mark.polygraphy, pytest.mark.rtx]


class FakeGpu:
    """The engines that were read, and which graph takes the place of the next one's plan."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.cuda = FakeCuda()
        self.engines: list[FakeEngine] = []
        self.models = {role: bundle.model_path(role) for role in (TARGET, DRAFT)}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    bundle = compiled_bundle("fp16")
    fake = FakeGpu(bundle)
    real = load_vendor("tensorrt-rtx")
    plans = {bundle.path / engine.role / "engine.plan": engine for engine in bundle.engines}

    class Runtime:
        def __init__(self, _logger: object) -> None: ...

        def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine:
            manifest = next(m for path, m in plans.items() if path.read_bytes() == plan)
            engine = FakeEngine(manifest, fake.models[manifest.role], real.module)
            fake.engines.append(engine)
            return engine

    class Module(SimpleNamespace):
        ICudaEngine = FakeEngine

        def __getattr__(self, name: str) -> Any:
            return getattr(real.module, name)

    module = Module(Runtime=Runtime)
    vendor = Vendor(module, real.name, real.version, is_rtx=True)
    monkeypatch.setattr(runners, "local_gpu", lambda: LocalGpu("fake", "8.9"))
    monkeypatch.setattr(runners.vendors, "load", lambda _name: vendor)
    monkeypatch.setattr(runners, "logger_for", lambda _module: (None, runners.Messages()))
    monkeypatch.setattr(runners.layers, "register", lambda _trt, _launcher: None)
    monkeypatch.setattr(runners.layers, "require", lambda _trt, _names: None)
    monkeypatch.setattr("polygraphy.cuda.cuda.G_CUDA", fake.cuda)
    point = runners.point_polygraphy_at

    def point_at_fake(*, rtx: bool) -> None:
        point(rtx=rtx)
        monkeypatch.setattr("polygraphy.backend.trt.runner.trt", module)

    monkeypatch.setattr(runners, "point_polygraphy_at", point_at_fake)
    yield fake
    # polygraphy does not free the buffers that it allocates for outputs.
    outputs = {address for engine in fake.engines for address in engine.output_blocks}
    assert set(fake.cuda.blocks) <= outputs, "device memory was left behind"


def test_every_call_is_timed_at_its_own_profile(gpu: FakeGpu) -> None:
    options = BenchOptions(iterations=2, warm_up=1, batch=2, length=40)
    found = {engine.role: engine for engine in bench(gpu.bundle, options).engines}
    assert list(found) == [TARGET, DRAFT]
    for engine in gpu.engines:
        names = [profile.name for profile in profiles_of(engine.manifest)]
        assert engine.used_profiles == names
        figures = found[engine.manifest.role]
        kinds = [call.kind.replace("root", "step") for call in figures.calls]
        assert kinds == names
        assert figures.threads is None
        assert all(call.latency.iterations == 2 for call in figures.calls)
        assert "on the device" in figures.measured


def test_nothing_is_copied_or_allocated_while_a_plan_is_timed(gpu: FakeGpu) -> None:
    """The caches alone are more bytes than a step reads in weights."""
    counts = []
    for iterations in (1, 4):
        gpu.cuda.num_copies = gpu.cuda.num_allocations = 0
        bench(gpu.bundle, BenchOptions(iterations=iterations, warm_up=1))
        counts.append((gpu.cuda.num_copies, gpu.cuda.num_allocations))
    assert counts[0] == counts[1]
    num_inputs = sum(len(each.inputs) * len(profiles_of(each)) for each in gpu.bundle.engines)
    assert counts[0][0] == num_inputs, "each input goes to the device once"


def test_the_first_call_that_fails_says_why(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """polygraphy says to look above, at a log that is silenced."""
    monkeypatch.setattr("tests.helpers.fake_gpu.FakeContext.execute_async_v3", lambda *_: False)
    monkeypatch.setattr(runners.layers, "refusals", lambda _trt: ["ssd::Verify has no kernel"])
    with pytest.raises(BackendError, match="the target plan failed: ssd::Verify has no kernel"):
        bench(gpu.bundle, BenchOptions(role=TARGET, iterations=1, warm_up=1))


def test_plans_that_compute_their_graphs_pass(gpu: FakeGpu) -> None:
    found = compare_plans(gpu.bundle, lambda *_: None)
    assert (found.passed, found.notes) == (True, ())
    assert set(found.calls) == {TARGET, DRAFT}
    for calls in found.calls.values():
        assert all(call.max_abs_difference == 0 for call in calls)
    assert found.answers is not None
    assert found.answers.num_equal == found.answers.num_tokens == ANSWER_TOKENS


def test_a_plan_of_other_weights_does_not_pass(gpu: FakeGpu) -> None:
    """G12."""
    gpu.models[TARGET] = compiled_bundle("fp16", seed=4).model_path(TARGET)
    found = compare_plans(gpu.bundle, lambda *_: None)
    assert not found.passed
    assert found.verdict.startswith("the plan is not its graph: target step: logits differs by")
    assert found.answers is not None
    assert not found.answers.passed


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_verification_reads_the_plan_where_it_can(gpu: FakeGpu, role: str) -> None:
    ids = np.random.default_rng(1).integers(0, 320, 90).tolist()
    with scoring(gpu.bundle, role) as chosen:
        assert (chosen.engine, chosen.notes) == ("plan", ())
        found = chosen.score(gpu.bundle.path, role, ids)
    assert gpu.engines[0].used_profiles == ["prompt"]
    np.testing.assert_allclose(found, score(tiny_bundle().path, role, ids), atol=0.5)


def test_the_fake_refuses_what_is_outside_a_profile(gpu: FakeGpu) -> None:
    """T14, T15: so the tests above show that we never ask for it."""
    metadata = {s.name: (runners.host_type(s.dtype), s.shape) for s in gpu.bundle.target.inputs}
    feed = feeds(metadata, PROMPT.fit(metadata))
    step = [profile.name for profile in profiles_of(gpu.bundle.target)].index("step")
    with (
        pytest.raises(BackendError, match="For input: tokens, failed to set shape to"),
        runners.without_chatter(),
        runners.open_plan(gpu.bundle, TARGET).runner(step) as runner,
    ):
        runner.infer(feed, check_inputs=False)


def test_polygraphy_drives_the_product_that_it_is_pointed_at() -> None:
    """It remembers what was wanted when it was first imported, if only for ONNX Runtime."""
    from polygraphy.datatype import DataType

    half = load_vendor("tensorrt-rtx").module.DataType.HALF
    runners.point_polygraphy_at(rtx=False)
    assert DataType.from_dtype(half, "tensorrt") != DataType.FLOAT16
    runners.point_polygraphy_at(rtx=True)
    assert DataType.from_dtype(half, "tensorrt") == DataType.FLOAT16


def test_a_plan_that_cannot_be_read_is_one_line(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = runners.vendors.load("tensorrt-rtx")
    monkeypatch.setattr(vendor.module.Runtime, "deserialize_cuda_engine", lambda *_: None)
    with pytest.raises(BackendError, match=r"cannot read .*target/engine\.plan: no reason given"):
        runners.open_plan(gpu.bundle, TARGET)
