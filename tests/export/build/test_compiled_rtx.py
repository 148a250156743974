"""Builds compiled by TensorRT-RTX itself: every family and precision, and the options' edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engines.bundle import open_bundle
from engines.tensors import DType
from export.build.build import build
from export.build.options import BuildOptions
from export.checkpoint.config import FAMILIES
from export.graph.precision import names_for
from export.tensorrt.plan_header import read_header
from tests.helpers.checkpoints import LLAMA3_ROPE, make_draft, make_llama, make_qwen3
from tests.helpers.families import make_model


def made(name: str) -> Callable[..., Path]:
    def make(folder: Path, *, hidden: int, intermediate: int) -> Path:
        return make_model(folder, name, hidden_size=hidden, intermediate_size=intermediate)

    return make


MAKERS: dict[str, Callable[..., Path]] = {
    "llama tied": partial(make_llama, tied=True),
    "llama untied": partial(make_llama, tied=False),
    "llama scaled rope": partial(make_llama, rope_scaling=LLAMA3_ROPE),
    "qwen3": make_qwen3,
    "qwen3 tied": partial(make_qwen3, tied=True),
    "qwen2 yarn": made("qwen2-yarn"),
    "mistral window": made("mistral"),
    "gemma3": made("gemma3"),
    "phi3 window": made("phi3"),
}
BUILDS = [
    *((family, "fp16", False) for family in MAKERS if not family.startswith("gemma3")),
    ("llama tied", "bf16", True),
    ("llama untied", "int8", True),
    ("llama scaled rope", "fp32", True),
    ("qwen3", "int4", True),
    ("llama tied", "int4", True),
    ("qwen3", "int8", True),
    ("qwen3 tied", "bf16", False),
    ("qwen3", "fp32", False),
    ("gemma3", "bf16", False),
    ("mistral window", "int8", False),
    ("phi3 window", "int4", False),
]
"""Family, precision, and whether the draft is of the same family with all ids."""


pytestmark = pytest.mark.usefixtures("own_cache")


def test_every_family_and_every_precision_is_compiled() -> None:
    assert {name.split()[0] for name, _, _ in BUILDS} == {family.name for family in FAMILIES}
    assert {precision for _, precision, _ in BUILDS} == set(names_for("tensorrt-rtx"))


@pytest.mark.rtx
@pytest.mark.parametrize(
    "change",
    [
        {"max_len": 2, "precision": "bf16"},  # the text is shorter than a prompt chunk
        {"max_len": 33, "num_draft": 16, "max_branches": 1},
        {"max_batch": 100_000, "draft": None},  # a call takes gigabytes of scratch memory
    ],
)
def test_the_edges_of_the_options_compile(options: BuildOptions, change: dict[str, Any]) -> None:
    """They crashed the compiler, or were refused in its own words."""
    bundle = build(dataclasses.replace(options, **change)).bundle
    assert all(engine.plan is not None for engine in bundle.engines)


@pytest.mark.rtx
@pytest.mark.parametrize(("family", "precision", "same_family"), BUILDS)
def test_families_compile_in_their_precisions(
    tmp_path: Path, family: str, precision: str, same_family: bool
) -> None:
    make, sizes = MAKERS[family], {"hidden": 64, "intermediate": 128}
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
