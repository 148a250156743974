"""Inputs that make sense to any graph of ours; its names and shapes are all that is known of it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.manifest import DRAFT, TARGET, EngineManifest, Limits
from engines.tensors import DType
from export.bench import data_loader
from export.bench.data_loader import (
    BRANCH,
    PROMPT,
    STEP,
    VERIFY,
    Call,
    Loader,
    Metadata,
    feeds,
)
from tests.export.bench.manifests import manifest_for

LIMITS = Limits(max_len=64, max_batch=3, num_draft=4, max_branches=6)
KINDS = {"step": STEP, "verify": VERIFY, "prompt": PROMPT, "branch": BRANCH}


def as_onnxruntime(manifest: EngineManifest) -> Metadata:
    """Open dimensions by name, as ONNX Runtime tells them."""
    return {spec.name: (spec.dtype.value, spec.shape) for spec in manifest.inputs}


def as_tensorrt(manifest: EngineManifest) -> Metadata:
    """Open dimensions as -1."""
    return {
        spec.name: (spec.dtype.value, [-1 if isinstance(d, str) else d for d in spec.shape])
        for spec in manifest.inputs
    }


METADATA = {
    "graph for ONNX Runtime": as_onnxruntime(manifest_for(TARGET, LIMITS)),
    "canonical graph": as_onnxruntime(manifest_for(TARGET, LIMITS, compiled=True)),
    "draft": as_onnxruntime(manifest_for(DRAFT, LIMITS)),
    "engine": as_tensorrt(manifest_for(TARGET, LIMITS, compiled=True, dtype=DType.FLOAT16)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", METADATA)
def test_every_kind_of_graph_gets_inputs_that_it_can_work_with(graph: str, kind: str) -> None:
    metadata = METADATA[graph]
    loader = Loader(KINDS[kind])
    loader.input_metadata = metadata
    [feed] = loader
    assert list(feed) == list(metadata)
    for name, (dtype, shape) in metadata.items():
        assert feed[name].dtype == np.dtype(str(dtype))
        assert feed[name].flags["C_CONTIGUOUS"]
        fixed = [n for n in shape if isinstance(n, int) and n > 0]
        assert set(fixed) <= set(feed[name].shape)
    check(feed)


def check(feed: dict[str, np.ndarray]) -> None:
    """What the graph's border asks of its inputs (``export.graph.api``)."""
    batch, width = feed["tokens"].shape
    rows = feed["mask"].shape[3]
    cache_rows = feed["kv.0.key"].shape[2]
    assert feed["mask"].shape == (batch, 1, width, rows)
    assert feed["mask"].any(axis=-1).all(), "a token that attends nothing"
    assert rows <= cache_rows
    assert (feed["write_at"] + width <= cache_rows).all()
    assert (feed["write_at"] >= 0).all()
    assert feed["tokens"].min() >= 0
    assert feed["tokens"].max() < 256
    assert feed["positions"].min() >= 0
    assert feed["logit_rows"].min() >= 0
    assert feed["logit_rows"].max() < width
    if "num_draft" in feed:
        assert (feed["num_draft"] == feed["logit_rows"].shape[1] - 1).all()
    written = feed["write_at"][:, None] + np.arange(width)
    seen = np.take_along_axis(feed["mask"][:, 0], written[:, :, None], axis=2)
    assert seen.all(), "a token that does not attend its own row"
    for name, value in feed.items():
        if name.startswith("kv."):
            assert np.isfinite(value).all()
            assert value.any()


@given(
    rows=st.integers(16, 200),
    scratch=st.integers(0, 8),
    text=st.integers(0, 8),
    tokens=st.integers(1, 8),
    branches=st.booleans(),
)
def test_masks_show_the_text_and_nothing_else(
    rows: int, scratch: int, text: int, tokens: int, branches: bool
) -> None:
    if branches:
        scratch = max(scratch, tokens)
        rows = max(rows, scratch + text)
    else:
        rows = max(rows, scratch + text + tokens)
    call = Call(2, tokens, tokens, rows, text, scratch, branches)
    metadata = as_onnxruntime(manifest_for(TARGET, LIMITS))
    feed = feeds(metadata, call)
    check(feed)
    for slot in range(2):
        for token in range(tokens):
            seen = set(np.flatnonzero(feed["mask"][slot, 0, token]).tolist())
            before = set(range(scratch, scratch + text))
            new = {token} if branches else set(range(scratch + text, scratch + text + token + 1))
            assert seen == before | new


def test_sizes_that_a_graph_fixes_win_over_the_kinds_own() -> None:
    metadata = dict(METADATA["canonical graph"])
    metadata["tokens"] = ("int64", (2, 3))
    fitted = VERIFY.fit(metadata)
    assert (fitted.batch, fitted.tokens, fitted.logits, fitted.rows) == (2, 3, 3, 64)
    small = PROMPT.fit({"kv.0.key": ("float32", ("B", 2, 48, 8))})
    assert (small.tokens, small.rows, small.text) == (48, 48, 0)
    beside = BRANCH.fit({"tokens": ("int64", (1, 20)), "mask": ("bool", (1, 1, 20, 24))})
    assert (beside.scratch, beside.text) == (20, 4)


def test_equal_arguments_give_equal_arrays() -> None:
    """Two runners are compared on them."""
    metadata = METADATA["canonical graph"]
    for name, array in feeds(metadata, STEP).items():
        np.testing.assert_array_equal(array, feeds(metadata, STEP)[name])


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"pixels": ("float32", (1, 3))}, "'pixels' is no input of a draft or target graph"),
        ({"kv.0.key": ("bfloat16", (1, 2, 8, 4))}, "kv.0.key has element type bfloat16"),
    ],
)
def test_a_foreign_graph_is_an_error_that_names_the_input(metadata: Metadata, words: str) -> None:
    loader = data_loader.load_data()
    loader.input_metadata = metadata
    with pytest.raises(ValueError, match=words):
        list(loader)


def test_without_metadata_there_is_nothing_to_load() -> None:
    with pytest.raises(ValueError, match="inputs are unknown"):
        list(data_loader.load_data())


def test_the_script_runs_without_the_project() -> None:
    """polygraphy imports it by its path, from anywhere."""
    code = f"import runpy; print(sorted(runpy.run_path({str(Path(data_loader.__file__))!r})))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    for name in ("branch", "load_data", "prompt", "step", "verify"):
        assert repr(name) in done.stdout
    assert runpy.run_path(data_loader.__file__)["load_data"].__name__ == "verify"
