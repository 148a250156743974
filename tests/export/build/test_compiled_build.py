"""Builds whose engines are compiled, by a compiler that is not there."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import re
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

import export.build.compiled
from engines.bundle import Bundle, open_bundle
from engines.errors import BackendError, BundleCorruptError, UsageError
from engines.locks import locked
from engines.tensors import DType
from export.build.build import build
from export.build.options import BuildOptions
from export.tensorrt.cache import EngineCache
from export.tensorrt.capabilities import LocalGpu
from tests.export.build.fake_compiling import RTX, STANDARD, Compiler, use
from tests.export.build.fake_graph import Recorder, never

HEX12 = "[0-9a-f]{12}"


pytestmark = pytest.mark.usefixtures("own_cache")


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
    assert plans(bundle) == plans(open_bundle(options.place, hashes="all"))


def header(capabilities: int, num_bytes: int = 48) -> bytes:
    """A plan that is a header and no more; a bit for each GPU, 8.9 is the fourth."""
    start = struct.pack("<4s12xQ4B4sQ", b"vtrt", num_bytes, 1, 7, 1, 116, b"vtrt", capabilities)
    return start.ljust(48, b"\0")


@pytest.mark.parametrize("plan", [header(0b1), header(0b011000, 49), header(0)])
def test_a_cached_plan_that_contradicts_the_build_is_compiled_again(
    options: BuildOptions, compiler: Compiler, plan: bytes
) -> None:
    """An entry may be whole and yet hold a plan for another GPU, or half a plan."""
    build(options)
    cache = EngineCache()
    for entry in cache.entries():
        assert entry.facts is not None
        cache.put(entry.key, plan, entry.facts)
    recorder = Recorder()
    elsewhere = dataclasses.replace(options, out=options.place.with_name("c"))
    bundle = build(elsewhere, reporter=recorder).bundle
    assert len(compiler.requests) == 4
    assert plan not in plans(bundle)
    words = rf"cached engine {HEX12} is a plan of 48 bytes for .*; it will be compiled again"
    assert sum(bool(re.fullmatch(words, line)) for line in recorder.lines) == 2
    assert [cache.get(entry.key) for entry in cache.entries()] == plans(bundle)[::-1]


def test_a_cached_plan_that_says_what_was_asked_for_is_taken(
    options: BuildOptions, compiler: Compiler
) -> None:
    build(options)
    cache = EngineCache()
    for entry in cache.entries():
        assert entry.facts is not None
        cache.put(entry.key, header(0b011000), entry.facts)
    bundle = build(dataclasses.replace(options, out=options.place.with_name("c"))).bundle
    assert len(compiler.requests) == 2
    assert plans(bundle) == [header(0b011000)] * 2


@pytest.mark.usefixtures("compiler")
def test_waiting_for_the_engine_cache_is_told_and_is_not_compiling(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build stood still without a word, and called that the time of the compiler."""
    cache, recorder, passed = EngineCache(), Recorder(), 0.0
    cache.folder.mkdir(parents=True)
    holding = ExitStack()
    holding.enter_context(locked(cache.folder / ".lock"))

    class Listener(Recorder):
        def say(self, text: str) -> None:
            nonlocal passed
            recorder.say(text)
            if "waiting for it" in text:
                passed += 1000.0
                holding.close()

    monkeypatch.setattr(export.build.compiled.time, "monotonic", lambda: passed)
    with holding:
        build(options, reporter=Listener())
    waits = [line for line in recorder.lines if "waiting for it" in line]
    assert waits == [f"another process is changing the engine cache {cache.folder}; waiting for it"]
    assert sum("in 0.0 s;" in line for line in recorder.lines) == 2


def plans(bundle: Bundle) -> list[bytes]:
    return [(bundle.path / engine.role / "engine.plan").read_bytes() for engine in bundle.engines]


def test_two_compilations_may_differ_and_each_bundle_vouches_for_its_own(
    options: BuildOptions, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5: equal keys, unequal plans. The manifest has the hash of what was stored."""
    first = build(options).bundle
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "another cache"))
    second = build(dataclasses.replace(options, out=options.place.with_name("c"))).bundle
    assert len(compiler.requests) == 4
    assert first.manifest.build_key == second.manifest.build_key
    assert not set(plans(first)) & set(plans(second))
    for bundle in (first, second):
        listed = [
            file.sha256
            for engine in bundle.engines
            for file in engine.files
            if file.path == "engine.plan"
        ]
        assert listed == [hashlib.sha256(plan).hexdigest() for plan in plans(bundle)]


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


def test_a_compilers_bad_end_is_told_with_all_that_went_in(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Compiler(BackendError("was ended by SIGABRT")))
    settings = (
        r"was ended by SIGABRT; it was compiling the target engine of .*/target in fp16 for "
        r"8\.9 12\.0 with --max-len 64 --max-batch 1 --num-draft 2 --max-branches 4$"
    )
    with pytest.raises(BackendError, match=settings):
        build(options)


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
