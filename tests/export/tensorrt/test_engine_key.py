"""Whatever decides a compiled engine changes its key, and nothing else does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import export.tensorrt.cache as module
from engines.profiles import ShapeProfile, Span, shape_profiles
from export.tensorrt.cache import EngineCache, engine_key
from tests.export.tensorrt.cache_files import (
    file_of,
)


@dataclasses.dataclass
class Inputs:
    onnx_folder: Path
    vendor_version: str = "tensorrt-rtx 1.7.1.116"
    precision: str = "fp16"
    capabilities: tuple[str, ...] = ("8.9", "12.0")
    profiles: tuple[ShapeProfile, ...] = shape_profiles(
        "target", max_batch=2, num_draft=4, max_branches=8, rows=512
    )
    plugin_digest: str = "d" * 64

    def key(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return engine_key(**values)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    (tmp_path / "model.onnx.data").write_bytes(b"weights")
    return Inputs(tmp_path)


def test_the_order_of_capabilities_and_the_place_do_not_change_the_key(
    inputs: Inputs, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (moved / name).write_bytes((tmp_path / name).read_bytes())
    other = dataclasses.replace(inputs, onnx_folder=moved, capabilities=("12.0", "8.9", "8.9"))
    assert inputs.key() == other.key()
    assert file_of(EngineCache(tmp_path), inputs.key())


PROFILES = Inputs.profiles


@pytest.mark.parametrize(
    "change",
    [
        {"vendor_version": "tensorrt-rtx 1.7.1.117"},
        {"vendor_version": "tensorrt 1.7.1.116"},
        {"precision": "bf16"},
        {"capabilities": ("8.9",)},
        {"capabilities": ("8.912.0",)},
        {"profiles": PROFILES[1:]},
        {"profiles": (*PROFILES[1:], PROFILES[0])},
        {"profiles": (dataclasses.replace(PROFILES[0], name="root"), *PROFILES[1:])},
        {"plugin_digest": "e" * 64},
    ],
)
def test_every_argument_changes_the_key(inputs: Inputs, change: dict[str, object]) -> None:
    changed = dataclasses.replace(inputs, **change)  # type: ignore[arg-type]
    assert changed.key() != inputs.key()


@pytest.mark.parametrize("dimension", ["batch", "tokens", "logits", "length"])
@pytest.mark.parametrize("span", [Span(2, 4, 6), Span(1, 5, 6), Span(1, 4, 7)])
def test_every_end_of_a_profile_changes_the_key(inputs: Inputs, dimension: str, span: Span) -> None:
    plain = ShapeProfile("step", *[Span(1, 4, 6)] * 4)
    changed = dataclasses.replace(plain, **{dimension: span})  # type: ignore[arg-type]
    keys = {dataclasses.replace(inputs, profiles=(each,)).key() for each in (plain, changed)}
    assert len(keys) == 2


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_both_files_of_the_graph_change_the_key(inputs: Inputs, name: str) -> None:
    before = inputs.key()
    path = inputs.onnx_folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert inputs.key() != before


def test_the_compilers_own_source_changes_the_key(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a new version of ssd-trt would find plans that an old one compiled with other flags."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "cache.py").write_text("flags = 1")
    monkeypatch.setattr(module, "__file__", str(source / "cache.py"))
    before = inputs.key()
    (source / "network.py").write_text("decomposable = True")
    added = inputs.key()
    (source / "network.py").write_text("decomposable = False")
    assert len({before, added, inputs.key()}) == 3
