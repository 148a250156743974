"""ONNX Runtime's rewrites: the same numbers as the canonical graph, and rows that round alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from engines.tensors import DType
from export.build.build import build
from export.build.options import BuildOptions
from export.checkpoint.api import open_checkpoint
from export.graph.api import GraphRequest, build_graph
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.workers.calls import feed_one
from runtime.workers.prefill import prefill
from tests.helpers.checkpoints import make_llama
from tests.helpers.families import make_model
from tests.helpers.tiny_bundle import open_session

ROWS, BATCH = 16, 2
SHARED, OWN = {"kv_heads": 2}, {"kv_heads": 4}
"""Of four query heads: two share keys, or each has its own."""
ODD = {"kv_heads": 2, "head_dim": 24}
"""Heads of no whole number of vectors."""


def written(folder: Path, checkpoint: Path, backend: str) -> onnx.ModelProto:
    """The graph of a checkpoint, whose cache has ROWS rows whatever the backend."""
    source = open_checkpoint(checkpoint)
    options = BuildOptions("t", backend=backend, precision="fp32", max_len=ROWS - 1, num_draft=1)
    request = GraphRequest(
        role="target",
        spec=source.spec,
        tensor=source.tensor,
        names=source.tensor_names(),
        limits=options.limits,
        kv=options.kv_layout("target", source.spec),
        precision="fp32",
        block=0,
        backend=backend,
    )
    folder.mkdir()
    result = build_graph(request)
    result.save(folder)
    return onnx.load(folder / "model.onnx", load_external_data=False)


def logits_of(folder: Path, model: onnx.ModelProto, num_tokens: int) -> np.ndarray:
    """Of a call whose second text is three tokens ahead of the first, on caches of noise."""
    random = np.random.default_rng(7)
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    starts = np.array([2, 5])
    positions = starts[:, None] + np.arange(num_tokens)
    feed = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        sizes = {"B": BATCH, "T": num_tokens, "R": num_tokens, "L": ROWS}
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        if value.name.startswith("kv."):
            cache = np.zeros(shape, DType.FLOAT32.numpy)
            cache[:, :, :ROWS] = random.normal(size=(*shape[:2], ROWS, shape[3]))
            feed[value.name] = cache
        else:
            feed[value.name] = {
                "tokens": random.integers(0, 300, positions.shape),
                "positions": positions,
                "write_at": starts,
                "mask": np.arange(ROWS) <= positions[:, None, :, None],
                "logit_rows": np.zeros_like(positions) + np.arange(num_tokens),
                "num_draft": np.zeros_like(starts),
            }[value.name]
    (logits,) = session.run(["logits"], feed)
    return logits


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
@pytest.mark.parametrize("name", ["llama-bias", "qwen2-window", "qwen3-yarn", "gemma3", "phi3"])
def test_the_rewritten_graph_computes_what_the_canonical_one_does(
    tmp_path: Path, name: str, num_tokens: int
) -> None:
    """A query head that met another head's keys, or a mask of another token, would show here."""
    checkpoint = make_model(tmp_path / "checkpoint", name)
    logits = [
        logits_of(folder, written(folder, checkpoint, backend), num_tokens)
        for backend in ("onnxruntime", "tensorrt-rtx")
        for folder in [tmp_path / backend]
    ]
    np.testing.assert_allclose(*logits, rtol=0, atol=2e-5)


def test_heads_that_share_keys_are_one_head(tmp_path: Path) -> None:
    """Attention reads a cache once a head that it is given, and copies no query of theirs."""
    for kinds, shared, expected in (
        (SHARED, True, {"Slice": 1, "Transpose": 2, "Where": 1}),
        (OWN, False, {"Slice": 6, "Transpose": 4, "Where": 0}),
    ):
        folder = tmp_path / str(shared)
        make_llama(tmp_path / f"checkpoint-{shared}", **kinds)
        model = written(folder, tmp_path / f"checkpoint-{shared}", "onnxruntime")
        found = [node.op_type for node in model.graph.node]
        assert {kind: found.count(kind) for kind in expected} == expected
        read = {name for node in model.graph.node for name in node.input}
        assert {weight.name for weight in model.graph.initializer} <= read


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("heads", [SHARED, OWN, ODD], ids=["shared", "own", "odd"])
def test_rows_are_equal_bit_for_bit_in_calls_of_all_widths(
    tmp_path: Path, heads: dict[str, int], precision: str, num_threads: int
) -> None:
    """Behind 300 rows, where a product over them that is cut up by width rounds differently."""
    make_llama(tmp_path / "model", hidden=64, intermediate=128, seed=3, **heads)
    options = BuildOptions(
        str(tmp_path / "model"), out=tmp_path / "b", precision=precision, max_len=400, block=32
    )
    bundle = build(options).bundle
    random = np.random.default_rng(0)
    text = random.integers(3, 300, 320).tolist()
    device = HostDevice()
    session = open_session(bundle, device, num_threads=num_threads)
    try:
        layout, start = SlotLayout(session.manifest.kv, 0), 304
        prefill(session, layout, 0, text[:start])
        rows = feed_one(session, layout, 0, start, text[start:]).logits[0].copy()
        for width in (1, 2, 3, 5, 8):
            found = feed_one(session, layout, 0, start, text[start : start + width]).logits[0]
            np.testing.assert_array_equal(found, rows[:width])
        for place in (1, 2):
            (alone,) = feed_one(session, layout, 0, start + place, [text[start + place]]).logits[0]
            np.testing.assert_array_equal(alone, rows[place])
    finally:
        session.close()
        device.close()
