from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.check.runners
from engines.bundle import Bundle
from engines.errors import (
    BackendError,
    BundleIncompatibleError,
    CapacityError,
    MissingDependencyError,
    SsdError,
    UsageError,
)
from engines.manifest import DRAFT, TARGET, Limits
from export.bench.data_loader import Call, feeds
from export.bench.device import DeviceEngine
from export.bench.host import HostEngine, choose_cores
from export.bench.latency import summarise
from export.bench.measure import BenchOptions, CallFigures, bench, verify_gain
from export.check.runners import onnx_runner, usable_cores, without_chatter
from export.tensorrt.capabilities import LocalGpu
from export.tensorrt.vendor import Vendor
from tests.engines.tiny_bundles import bundle_manifest
from tests.export.bench.manifests import manifest_for
from tests.helpers.tiny_bundle import tiny_bundle

QUICK = BenchOptions(iterations=3, warm_up=1)


def compiled_bundle(path: Path = Path("compiled")) -> Bundle:
    """A bundle whose plans nobody can read."""
    limits = Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6)
    target = manifest_for(TARGET, limits, compiled=True)
    return Bundle(path, bundle_manifest(draft=False), target, None)


@pytest.mark.polygraphy
def test_every_call_of_both_engines_is_timed_as_often_as_asked() -> None:
    ticks: list[tuple[str, int, int]] = []
    result = bench(tiny_bundle(), QUICK, lambda *tick: ticks.append(tick))
    kinds = {engine.role: [call.kind for call in engine.calls] for engine in result.engines}
    assert kinds == {TARGET: ["step", "verify", "prompt"], DRAFT: ["root", "branch", "prompt"]}
    for engine in result.engines:
        for call in engine.calls:
            assert call.latency.iterations == 3
            assert 0 < call.latency.min_s <= call.latency.p50_s <= call.latency.p99_s
            expected = {"step": 1, "root": 1, "prompt": call.tokens}.get(call.kind)
            rate = None if expected is None else expected / call.latency.p50_s
            assert call.tokens_per_second == rate
            assert [t[1:] for t in ticks if t[0] == f"{engine.role} {call.kind}"] == [
                (done, 3) for done in range(4)
            ]
    assert result.engines[0].threads == len(usable_cores())
    assert result.engines[1].threads == 1
    assert set(result.versions) >= {"python", "numpy", "onnxruntime", "polygraphy"}
    assert result.machine["cpu"]


@pytest.mark.polygraphy
def test_calls_take_turns() -> None:
    """One after the other, a machine that slows down would flatter whichever came first."""
    ticks: list[tuple[str, int]] = []
    options = replace(QUICK, role=TARGET, iterations=7)
    bench(tiny_bundle(), options, lambda what, done, _total: ticks.append((what, done)))
    turns = [(0, 1), (1, 2), (2, 4), (4, 5), (5, 7)]
    kinds = ("step", "verify", "prompt")
    timed = [
        (f"target {kind}", done)
        for begin, end in turns
        for kind in kinds
        for done in range(begin, end)
    ]
    assert [tick for tick in ticks if tick[1] < 7] == timed


def figures_of(kind: str, tokens: int, *seconds: float) -> CallFigures:
    return CallFigures(kind, 1, tokens, tokens, 64, 8, summarise(seconds), None)


def test_the_gain_of_a_verification_is_by_medians() -> None:
    step, verify = figures_of("step", 1, 0.5, 2.0, 9.0), figures_of("verify", 5, 3.0, 4.0, 5.0)
    assert verify_gain((step, verify)) == pytest.approx(5 * 2.0 / 4.0)
    assert verify_gain((step, figures_of("prompt", 64, 1.0))) is None
    assert verify_gain((figures_of("root", 1, 1.0), figures_of("branch", 6, 1.0))) is None


@pytest.mark.polygraphy
def test_options_reach_the_engine() -> None:
    options = BenchOptions(role=TARGET, iterations=1, warm_up=1, length=20, batch=2, threads=1)
    [engine] = bench(tiny_bundle(), replace(options, tokens=3)).engines
    assert engine.threads == 1
    assert [(call.batch, call.tokens, call.rows, call.text) for call in engine.calls] == [
        (2, 1, 64, 20),
        (2, 3, 64, 20),
        (1, 64, 128, 20),
    ]


@pytest.mark.polygraphy
@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_the_timed_step_computes_what_polygraphys_own_runner_does(role: str) -> None:
    """A step that skipped its work, or read another mask, would be fast."""
    bundle = tiny_bundle()
    manifest = bundle.target if role == TARGET else bundle.draft
    assert manifest is not None
    scratch = manifest.kv.scratch_rows
    call = Call(batch=2, tokens=3, logits=2, rows=manifest.lengths[0], text=9, scratch=scratch)
    metadata = {spec.name: (spec.dtype.value, spec.shape) for spec in manifest.inputs}
    feed = feeds(metadata, call)
    for name in feed:
        if name.startswith("kv."):
            feed[name][...] = 0
    border = {name: value for name, value in feed.items() if not name.startswith("kv.")}
    with without_chatter(), onnx_runner(bundle.model_path(role), 1) as theirs:
        expected = theirs.infer(feed)
    engine = HostEngine(bundle, manifest, choose_cores(1, role), batch=2)
    try:
        with without_chatter(), engine.runner(call) as ours:
            found = ours.infer(border)
            seconds = ours.last_inference_time()
            assert seconds > 0
            assert found
            for name, value in found.items():
                np.testing.assert_array_equal(value, expected[name])
    finally:
        engine.close()


REFUSED: list[tuple[dict[str, Any], type[SsdError], str]] = [
    ({"role": "teacher"}, UsageError, "--role teacher"),
    ({"iterations": 0}, UsageError, "--iterations is 0"),
    ({"warm_up": 0}, UsageError, "--warm-up is 0"),
    ({"threads": 0}, UsageError, "--threads is 0"),
    ({"threads": 4096}, UsageError, "--threads is 4096, it must be between 1 and"),
    ({"batch": 9}, CapacityError, "--batch 9 is above the 3"),
    ({"tokens": 6}, CapacityError, "--tokens 6 is above the 5"),
    ({"role": DRAFT, "tokens": 3}, UsageError, "--tokens is of verifications, and a draft has"),
    ({"length": 5000}, CapacityError, "--length 5000 leaves no room"),
]


@pytest.mark.polygraphy
@pytest.mark.parametrize(("options", "error", "words"), REFUSED)
def test_options_that_cannot_be_are_refused(
    options: dict[str, Any], error: type[SsdError], words: str
) -> None:
    with pytest.raises(error, match=words):
        bench(tiny_bundle(), BenchOptions(**options))


def test_a_bundle_without_a_draft_has_none_to_time() -> None:
    with pytest.raises(UsageError, match="compiled has no draft; rebuild it with --draft"):
        bench(compiled_bundle(), BenchOptions(role=DRAFT))


def test_threads_of_a_plan_are_not_ours_to_choose() -> None:
    bundle = compiled_bundle()
    gpu_bundle = replace(bundle, manifest=replace(bundle.manifest, backend="tensorrt-rtx"))
    with pytest.raises(UsageError, match="--threads is for onnxruntime bundles"):
        bench(gpu_bundle, BenchOptions(threads=1))


def test_without_polygraphy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polygraphy", None)
    with pytest.raises(MissingDependencyError, match=r"polygraphy.*ssd-trt\[bench\]"):
        bench(tiny_bundle(), QUICK)


def test_a_container_with_a_quota_has_fewer_cores_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.device.cores.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("runtime.device.cores.cpu_quota", lambda: 1.5)
    assert choose_cores(None, TARGET) == (0, 1)
    assert choose_cores(None, DRAFT) == (1,)
    with pytest.raises(UsageError, match="between 1 and 2"):
        choose_cores(3, TARGET)


@pytest.mark.polygraphy
def test_a_plan_without_its_gpu_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.check.runners, "local_gpu", lambda: None)
    with pytest.raises(
        BackendError, match="compiled: running its tensorrt-rtx plan needs"
    ) as found:
        bench(compiled_bundle(), QUICK)
    assert "\n" not in str(found.value)
    monkeypatch.setattr(export.check.runners, "local_gpu", lambda: LocalGpu("H200", "9.0"))
    with pytest.raises(BackendError, match=r"for compute capability 8\.9, and .*H200 has 9\.0"):
        bench(compiled_bundle(), QUICK)


@pytest.mark.polygraphy
def test_a_plan_of_another_release_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export.check.runners, "local_gpu", lambda: LocalGpu("RTX 4090", "8.9"))
    other = Vendor(None, "tensorrt-rtx", "1.8.0", is_rtx=True)
    monkeypatch.setattr(export.check.runners.vendors, "load", lambda _name: other)
    words = r"compiled by tensorrt-rtx 1\.7\.1\.116, tensorrt-rtx 1\.8\.0 is installed.*rebuild: "
    with pytest.raises(BundleIncompatibleError, match=words):
        DeviceEngine(compiled_bundle(), TARGET)
