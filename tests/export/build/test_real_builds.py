"""Builds with the real graph: what their engines hold, and what stops them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.build.plan
from engines.errors import CheckpointError, SsdError, UnsupportedModelError
from engines.manifest import DRAFT, TARGET
from export.build.build import build
from export.build.options import BuildOptions
from export.build.plan import make_plan
from tests.export.build.fake_graph import Recorder, never
from tests.helpers.checkpoints import make_draft, make_gguf, make_llama, make_qwen3
from tests.helpers.families import make_model


def real(tmp_path: Path, target: Path, draft: Path | None, **changes: Any) -> BuildOptions:
    options = {"precision": "fp32", "max_len": 48, "num_draft": 2, "max_branches": 2, **changes}
    return BuildOptions(str(target), str(draft) if draft else None, tmp_path / "b", **options)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("make", [make_llama, make_qwen3, make_gguf])
def test_real_engines_have_the_estimated_size_and_one_data_file(
    tmp_path: Path, precision: str, make: Any
) -> None:
    """X8, T16."""
    target = make(tmp_path / "t", hidden=64, intermediate=128, kv_heads=4)
    draft = make_draft(tmp_path / "d", hidden=64, intermediate=128)
    options = real(tmp_path, target, draft, precision=precision)
    recorder = Recorder()
    bundle = build(options, reporter=recorder).bundle
    plan = export.build.plan.make_plan(options, recorder)
    for engine, estimate in zip(bundle.engines, plan.estimates(), strict=True):
        assert engine.model.num_parameters == estimate.num_parameters
        (data,) = [file for file in engine.files if file.path == "model.onnx.data"]
        assert abs(data.size - estimate.file_bytes) < 0.05 * data.size + 8192
    names = sorted(path.name for path in (tmp_path / "b" / "target").iterdir())
    assert names == ["manifest.json", "model.onnx", "model.onnx.data"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_stop_the_build_and_leave_nothing(
    tmp_path: Path, value: float
) -> None:
    weight = np.full((32, 64), 0.1, dtype=np.float32)
    weight[3, 4] = value
    name = "model.layers.1.mlp.down_proj.weight"
    target = make_llama(tmp_path / "t", tensors={name: weight})
    (tmp_path / "out").mkdir()
    options = dataclasses.replace(real(tmp_path, target, None), out=tmp_path / "out" / "b")
    with pytest.raises(CheckpointError, match=name):
        build(options)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_weight_without_a_place_in_the_graph_stops_the_build(tmp_path: Path) -> None:
    """X2. Before a weight is read, and in a dry run."""
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(8, dtype=np.float32)}
    target = make_llama(tmp_path / "t", tensors=extra)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.q_norm\.weight"):
        build(real(tmp_path, target, None), build_graph=never)
    assert not (tmp_path / "b").exists()
    draft = make_draft(tmp_path / "d", tensors=extra)
    with pytest.raises(CheckpointError, match=r"/d: 1 weight\(s\) have no place in a llama graph"):
        make_plan(real(tmp_path, make_llama(tmp_path / "good"), draft), Recorder())


def test_a_draft_padded_further_than_its_target_cannot_say_more_ids(tmp_path: Path) -> None:
    """V4. Both have 961 tokens."""
    target = make_llama(tmp_path / "t", vocab=980)
    draft = make_llama(tmp_path / "d", vocab=1000, layers=1)
    bundle = build(real(tmp_path, target, draft)).bundle
    assert bundle.draft is not None
    assert bundle.draft.model.vocab_size == bundle.draft.model.output_vocab == 961
    (logits,) = [spec for spec in bundle.draft.outputs if spec.name == "logits"]
    assert logits.shape[-1] == 961


def test_a_width_that_blocks_do_not_divide_names_the_way_out(tmp_path: Path) -> None:
    """Before a weight is read: it was found in the last layers, and behind the target's engine."""
    target = make_llama(tmp_path / "t", hidden=32, intermediate=96)
    with pytest.raises(
        SsdError, match=r"the target's hidden_size is 32, which .* build with --block 32"
    ):
        make_plan(real(tmp_path, target, None, precision="int8"), Recorder())
    draft = make_llama(tmp_path / "d", hidden=64, intermediate=100, layers=1)
    with pytest.raises(
        SsdError, match=r"the draft's intermediate_size is 100, .* build with --precision fp32"
    ):
        make_plan(real(tmp_path, target, draft, precision="int8", block=32), Recorder())
    assert build(real(tmp_path, target, None, precision="int8", block=32)).bundle.draft is None


def test_roles_of_the_manifests_are_those_of_their_folders(tmp_path: Path) -> None:
    target, draft = make_llama(tmp_path / "t"), make_draft(tmp_path / "d")
    build(real(tmp_path, target, draft))
    for role in (TARGET, DRAFT):
        manifest = json.loads((tmp_path / "b" / role / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["role"] == role
        assert all(spec["name"] for spec in manifest["inputs"])


def test_a_drafts_window_that_is_too_short_is_found_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """The target's engine was written first, which takes minutes."""
    target = make_model(tmp_path / "t", "mistral")
    draft = make_model(tmp_path / "d", "mistral", sliding_window=3)
    options = dataclasses.replace(real(tmp_path, target, draft), num_draft=4, max_branches=2)
    with pytest.raises(UnsupportedModelError, match=r"draft.s sliding window of 3 .*-draft 3 "):
        build(options, build_graph=never)
    with pytest.raises(UnsupportedModelError, match="--num-draft 3"):
        make_plan(options, Recorder())
    make_plan(dataclasses.replace(options, num_draft=3), Recorder())
