"""What a compiled build refuses before anything is compiled, and mostly before a weight is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import export.build.plan
from engines.errors import UsageError
from export.build.build import build
from export.build.options import BuildOptions
from export.build.plan import check_room, make_plan
from tests.export.build.fake_compiling import Compiler
from tests.export.build.fake_graph import Recorder, never
from tests.helpers.checkpoints import make_llama

pytestmark = pytest.mark.usefixtures("own_cache")


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
        assert estimate.disk_bytes == estimate.file_bytes + estimate.plan_bytes
        assert estimate.plan_bytes > estimate.file_bytes
        assert estimate.peak_bytes >= max(estimate.build_bytes, 4 * estimate.file_bytes)
    enough = sum(estimate.disk_bytes for estimate in plan.estimates()) + len(plan.tokenizer)
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
        assert estimate.disk_bytes == estimate.file_bytes
        assert estimate.peak_bytes == estimate.build_bytes


def test_more_slots_than_any_gpu_has_room_for_are_refused_with_the_number_that_fits(
    options: BuildOptions, compiler: Compiler
) -> None:
    """They came to the compiler, which ended by a signal or with a message about its own memory."""
    with pytest.raises(UsageError, match=r"the largest GPU has 288\.0 GB; use --max-batch") as said:
        build(dataclasses.replace(options, max_batch=10**18), build_graph=never)
    assert "TB for caches" in str(said.value)
    fitting = int(str(said.value).split("--max-batch ")[-1].split()[0])
    for max_batch, fits in ((fitting, True), (fitting + fitting // 1000, False)):
        asked = dataclasses.replace(options, max_batch=max_batch)
        if fits:
            check_room(make_plan(asked, Recorder()), Recorder())
        else:
            with pytest.raises(UsageError, match="the largest GPU"):
                make_plan(asked, Recorder())
    assert compiler.requests == []


def test_one_text_that_fits_no_gpu_is_told_apart(
    options: BuildOptions, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiler.requests == []
    monkeypatch.setattr(export.build.plan, "LARGEST_GPU_BYTES", 1000)
    with pytest.raises(UsageError, match=r"has 1\.0 kB; use a smaller --max-len$"):
        make_plan(options, Recorder())


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt-rtx"])
def test_a_build_that_this_machine_cannot_hold_is_refused(
    options: BuildOptions, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """T16: it was killed after minutes. What may just fit is tried."""
    assert compiler.requests == []
    if backend == "onnxruntime":
        options = dataclasses.replace(
            options, backend=backend, precision="fp32", capabilities=(), draft=None
        )
    plan = make_plan(options, Recorder())
    peak = max(estimate.peak_bytes for estimate in plan.estimates())
    monkeypatch.setattr(export.build.plan, "total_memory", lambda: peak // 2)
    with pytest.raises(UsageError, match=r"takes about .* MB of memory, this machine has .* MB"):
        check_room(plan, Recorder())
    monkeypatch.setattr(export.build.plan, "total_memory", lambda: peak * 3 // 4)
    check_room(plan, Recorder())


def test_a_head_size_without_a_kernel_is_refused_before_a_weight_is_read(
    options: BuildOptions, compiler: Compiler, tmp_path: Path
) -> None:
    """It ended in an assertion of the compiler. Target and draft are asked alike."""
    small = make_llama(tmp_path / "small", hidden=64, heads=8)
    for change in ({"target": str(small)}, {"draft": str(small)}):
        wrong = dataclasses.replace(options, **change)
        with pytest.raises(UsageError, match=r"small has attention heads of size 8, .* fp32"):
            build(wrong, build_graph=never)
    wrong = dataclasses.replace(options, target=str(small), draft=None, precision="fp32")
    assert build(wrong).bundle.target.plan is not None
    assert len(compiler.requests) == 1


def test_a_wrong_size_of_the_engine_cache_is_found_before_anything_is_read(
    options: BuildOptions, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found when the graph had been written."""
    assert compiler.requests == []
    monkeypatch.setenv("SSD_TRT_CACHE_GB", "much")
    with pytest.raises(UsageError, match="SSD_TRT_CACHE_GB"):
        build(dataclasses.replace(options, target="no/such/checkpoint"), build_graph=never)
