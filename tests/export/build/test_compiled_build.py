"""Builds whose engines are compiled: with a compiler that is not there, and with TensorRT-RTX."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import export.build.compiled
import export.build.plan
from engines.bundle import open_bundle
from engines.errors import BackendError, BundleCorruptError, UsageError
from engines.tensors import DType
from export.build.build import build
from export.build.options import BuildOptions
from export.build.plan import check_room, make_plan
from export.tensorrt.capabilities import LocalGpu
from export.tensorrt.plan_header import read_header
from export.tensorrt.process import CompileRequest
from export.tensorrt.progress import Progress
from export.tensorrt.vendor import Vendor
from tests.export.build.fake_graph import Recorder, never
from tests.helpers.checkpoints import LLAMA3_ROPE, make_draft, make_llama, make_qwen3

MEMBERS = {"NONE": 0, "SM75": 75, "SM89": 89, "SM120": 120}
MODULE = SimpleNamespace(ComputeCapability=SimpleNamespace(__members__=MEMBERS))
RTX = Vendor(MODULE, "tensorrt-rtx", "1.7.1.116", is_rtx=True)
STANDARD = Vendor(SimpleNamespace(), "tensorrt", "11.4.0.106", is_rtx=False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    target = make_llama(tmp_path / "target", hidden=64, intermediate=128)
    draft = make_draft(tmp_path / "draft", hidden=64, intermediate=128)
    return BuildOptions(
        str(target),
        str(draft),
        tmp_path / "out" / "b",
        backend="tensorrt-rtx",
        precision="fp16",
        max_len=64,
        num_draft=2,
        max_branches=4,
        capabilities=("8.9", "12.0"),
    )


class Compiler:
    """Stands in for the child process; remembers what it was asked for."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.requests: list[CompileRequest] = []

    def __call__(self, request: CompileRequest, progress: Progress) -> None:
        progress("compiling", 50, 100)
        assert Path(request.onnx_path).is_file()
        Path(request.plan_path).write_bytes(b"plan of " + request.onnx_path.encode())
        if self.error is not None:
            raise self.error
        self.requests.append(request)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    fake = Compiler()
    use(monkeypatch, fake)
    return fake


def use(
    monkeypatch: pytest.MonkeyPatch,
    compiler: Compiler,
    vendor: Vendor = RTX,
    gpu: LocalGpu | None = None,
) -> None:
    monkeypatch.setattr(export.build.compiled, "compile_in_process", compiler)
    monkeypatch.setattr(export.build.compiled, "load", lambda _name: vendor)
    monkeypatch.setattr(export.build.compiled, "local_gpu", lambda: gpu)


def test_a_compiled_bundle_says_what_its_plans_are(
    options: BuildOptions, compiler: Compiler
) -> None:
    recorder = Recorder()
    bundle = build(options, reporter=recorder).bundle
    for engine, request in zip(bundle.engines, compiler.requests, strict=True):
        plan = engine.plan
        assert plan is not None
        assert (plan.file, plan.builder) == ("engine.plan", "tensorrt-rtx 1.7.1.116")
        assert plan.capabilities == request.capabilities == ("8.9", "12.0")
        assert plan.profiles == request.profiles
        assert plan.plugins == request.plugins
        assert {"engine.plan", "model.onnx", "model.onnx.data"} <= {f.path for f in engine.files}
        assert request.timing_cache is None
        assert engine.kv.dtype is DType.FLOAT16
    assert [request.plugins for request in compiler.requests] == [
        ("ssd::Verify@1",),
        ("ssd::Sample@1",),
    ]
    assert [p.name for p in compiler.requests[0].profiles] == ["step", "verify", "prompt"]
    assert [p.name for p in compiler.requests[1].profiles] == ["step", "branch", "prompt"]
    assert bundle.target.builder["compiler"] == "tensorrt-rtx 1.7.1.116"
    assert ("target compiling", 50, 100) in recorder.steps
    assert any("compiled by tensorrt-rtx 1.7.1.116 for 8.9 12.0" in line for line in recorder.lines)


def test_profiles_cover_every_shape_that_the_limits_allow(
    options: BuildOptions, compiler: Compiler
) -> None:
    """T14, T15: the largest call of each kind fits, one more does not."""
    build(dataclasses.replace(options, max_batch=3))
    (step, verify, prompt), (root, branch, _) = (r.profiles for r in compiler.requests)
    rows, draft_rows = 80, 88
    assert step.holds(batch=3, tokens=1, logits=1, length=rows)
    assert verify.holds(batch=3, tokens=3, logits=3, length=rows)
    assert not verify.holds(batch=3, tokens=4, logits=3, length=rows)
    assert not verify.holds(batch=4, tokens=3, logits=3, length=rows)
    assert not verify.holds(batch=3, tokens=3, logits=3, length=rows + 1)
    assert prompt.holds(batch=1, tokens=64, logits=1, length=rows)
    assert root.holds(batch=3, tokens=3, logits=3, length=draft_rows)
    assert branch.holds(batch=1, tokens=4, logits=4, length=draft_rows)


def test_the_same_build_is_a_hit_and_the_same_engine_is_not_compiled_twice(
    options: BuildOptions, compiler: Compiler
) -> None:
    build(options)
    assert build(options, build_graph=never).cache_hit
    recorder = Recorder()
    elsewhere = dataclasses.replace(options, out=options.place.with_name("c"), keep_onnx=False)
    bundle = build(elsewhere, reporter=recorder).bundle
    assert len(compiler.requests) == 2
    assert sum("from the cache" in line for line in recorder.lines) == 2
    plan = bundle.plan_path("target")
    assert plan is not None
    assert plan.read_bytes() == open_bundle(options.place).plan_path("target").read_bytes()  # type: ignore[union-attr]


def test_without_the_graph_a_bundle_is_its_plans(options: BuildOptions, compiler: Compiler) -> None:
    bundle = build(dataclasses.replace(options, keep_onnx=False)).bundle
    assert len(compiler.requests) == 2
    names = sorted(path.name for path in (options.place / "draft").iterdir())
    assert names == ["engine.plan", "manifest.json", "vocab_map.npy"]
    assert "--no-onnx" in bundle.manifest.rebuild
    assert not build(options).cache_hit, "the graph is wanted now"


OTHER_VERSION = dataclasses.replace(RTX, version="1.8.0.1")


@pytest.mark.parametrize("change", ["capability", "version", "plugins", "precision", "length"])
def test_whatever_decides_a_plan_is_part_of_the_build_key(
    options: BuildOptions, compiler: Compiler, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: a plan of another release must not pass for the one that was asked for."""
    build(options)
    if change == "capability":
        options = dataclasses.replace(options, capabilities=("8.9",))
    elif change == "version":
        use(monkeypatch, compiler, OTHER_VERSION)
    elif change == "plugins":
        monkeypatch.setattr(export.build.compiled.plugins, "digest", lambda: "another")
    elif change == "precision":
        options = dataclasses.replace(options, precision="bf16")
    else:
        options = dataclasses.replace(options, max_len=80)
    assert not build(options).cache_hit
    assert len(compiler.requests) == 4
    assert build(options, build_graph=never).cache_hit


def test_a_damaged_plan_is_no_hit_and_is_mended_from_the_cache(
    options: BuildOptions, compiler: Compiler
) -> None:
    bundle = build(options).bundle
    plan = bundle.plan_path("draft")
    assert plan is not None
    sound = plan.read_bytes()
    plan.write_bytes(b"!" * len(sound))
    with pytest.raises(BundleCorruptError, match=r"engine\.plan"):
        open_bundle(options.place)
    assert not build(options).cache_hit
    assert plan.read_bytes() == sound
    assert len(compiler.requests) == 2


FAILURES: list[tuple[BaseException, type[BaseException], str]] = [
    (BackendError("no kernel"), BackendError, "no kernel"),
    (OSError(errno.ENOSPC, "No space left"), UsageError, "the disk filled up while"),
    (OSError(errno.EROFS, "Read-only file system", "p"), UsageError, "cannot write .*Read-only"),
    (KeyboardInterrupt("^C"), KeyboardInterrupt, r"\^C"),
]


@pytest.mark.parametrize(("error", "kind", "words"), FAILURES)
def test_a_compile_that_ends_badly_leaves_nothing(
    options: BuildOptions,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    kind: type[BaseException],
    words: str,
) -> None:
    use(monkeypatch, Compiler(error))
    with pytest.raises(kind, match=words):
        build(options)
    assert list(options.place.parent.iterdir()) == []
    use(monkeypatch, Compiler())
    assert not build(options).cache_hit


def test_standard_tensorrt_is_bound_to_the_gpu_here(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dataclasses.replace(options, backend="tensorrt", capabilities=())
    with pytest.MonkeyPatch.context() as patch:
        use(patch, Compiler(), STANDARD)
        with pytest.raises(UsageError, match=r"no GPU can be used here.*--backend tensorrt-rtx"):
            build(options, build_graph=never)
    compiler = Compiler()
    use(monkeypatch, compiler, STANDARD, LocalGpu("NVIDIA H200", "9.0"))
    bundle = build(options).bundle
    assert bundle.target.plan is not None
    assert bundle.target.plan.capabilities == ("9.0",)
    assert bundle.target.plan.builder == "tensorrt 11.4.0.106"
    times = compiler.requests[0].timing_cache
    assert times is not None
    assert times.endswith("/cache/timing/tensorrt-11.4.0.106-on-NVIDIA-H200.cache")
    assert build(options, build_graph=never).cache_hit
    use(monkeypatch, compiler, STANDARD, LocalGpu("NVIDIA H100", "9.0"))
    assert not build(options).cache_hit, "a plan fits the GPU it was compiled on"
    assert len(compiler.requests) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capabilities": ("9.0",)}, r"9\.0 is not supported .*--backend tensorrt$"),
        ({"precision": "bf16", "capabilities": ("7.5",)}, "no bfloat16 arithmetic"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_anything_is_read(
    options: BuildOptions, compiler: Compiler, change: dict[str, Any], words: str
) -> None:
    wrong = dataclasses.replace(options, target="no/such/checkpoint", **change)
    with pytest.raises(UsageError, match=words):
        build(wrong, build_graph=never)
    assert compiler.requests == []
    assert not options.place.parent.exists()


def test_room_is_asked_for_graph_and_plan(
    options: BuildOptions, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16."""
    assert compiler.requests == []
    plan = make_plan(options, Recorder())
    for estimate in plan.estimates():
        assert plan.disk_bytes(estimate) > 2 * estimate.file_bytes
        assert plan.memory_bytes(estimate) > 4 * estimate.file_bytes
        assert plan.memory_bytes(estimate) >= estimate.build_bytes
    enough = sum(plan.disk_bytes(e) for e in plan.estimates()) + len(plan.tokenizer)
    monkeypatch.setattr(export.build.plan, "free_disk", lambda _folder: enough)
    check_room(plan, Recorder())
    monkeypatch.setattr(export.build.plan, "free_disk", lambda _folder: enough - 1)
    with pytest.raises(UsageError, match="the disk has"):
        check_room(plan, Recorder())


def test_a_build_without_a_compiler_needs_room_for_its_graph_alone(options: BuildOptions) -> None:
    plain = dataclasses.replace(options, backend="onnxruntime", precision="fp32", capabilities=())
    plan = make_plan(plain, Recorder())
    assert plan.compiler is None
    for estimate in plan.estimates():
        assert plan.disk_bytes(estimate) == estimate.file_bytes
        assert plan.memory_bytes(estimate) == estimate.build_bytes


# With TensorRT-RTX itself. -----------------------------------------------------------------------

FAMILIES: dict[str, Callable[..., Path]] = {
    "llama tied": partial(make_llama, tied=True),
    "llama untied": partial(make_llama, tied=False),
    "llama3 rope": partial(make_llama, rope_scaling=LLAMA3_ROPE),
    "qwen3": make_qwen3,
}
BUILDS = [
    *((family, "fp16", False) for family in FAMILIES),
    ("llama tied", "bf16", True),
    ("llama untied", "int8", True),
    ("llama3 rope", "fp32", True),
    ("qwen3", "int4", True),
    ("llama tied", "int4", True),
    ("qwen3", "int8", True),
]
"""Family, precision, and whether the draft is of the same family with all ids."""


@pytest.mark.rtx
@pytest.mark.parametrize(("family", "precision", "same_family"), BUILDS)
def test_every_family_compiles_in_every_precision(
    tmp_path: Path, family: str, precision: str, same_family: bool
) -> None:
    make, sizes = FAMILIES[family], {"hidden": 64, "intermediate": 128}
    target = make(tmp_path / "t", **sizes)
    draft = (
        make(tmp_path / "d", layers=1, seed=9, **sizes)
        if same_family
        else make_draft(tmp_path / "d", **sizes)
    )
    options = BuildOptions(
        str(target),
        str(draft),
        tmp_path / "b",
        backend="tensorrt-rtx",
        precision=precision,
        max_len=96,
        max_batch=2,
        max_branches=6,
        capabilities=("8.9", "12.0"),
    )
    build(options)
    bundle = open_bundle(options.place, hashes="all")
    expected = {"fp32": DType.FLOAT32, "bf16": DType.BFLOAT16}.get(precision, DType.FLOAT16)
    for engine in bundle.engines:
        path = bundle.plan_path(engine.role)
        assert engine.plan is not None
        assert path is not None
        header = read_header(path.read_bytes())
        assert header is not None
        assert f"tensorrt-rtx {header.version}" == engine.plan.builder
        assert header.capabilities == engine.plan.capabilities == ("8.9", "12.0")
        assert engine.kv.dtype is expected
        plugin = "ssd::Verify@1" if engine.role == "target" else "ssd::Sample@1"
        assert engine.plan.plugins == (plugin,)
