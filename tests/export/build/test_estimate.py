"""The sizes that a build announces, against what it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from engines.manifest import DRAFT, TARGET
from export.build.estimate import EngineEstimate, estimate_engine
from export.build.options import BLOCKS, BuildOptions
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.graph.api import GraphRequest, build_graph
from export.graph.precision import precision_for
from tests.helpers.checkpoints import make_draft, make_llama

KINDS = [
    ("onnxruntime", "fp32"),
    ("onnxruntime", "int8"),
    ("onnxruntime", "int4"),
    *(("tensorrt-rtx", name) for name in ("fp32", "fp16", "bf16", "int8", "int4")),
]


def estimate(source: Checkpoint, role: str, **options: object) -> EngineEstimate:
    chosen = BuildOptions("t", "d", max_len=200, **options)  # type: ignore[arg-type]
    return estimate_engine(role, source.spec, chosen.kv_layout(role, source.spec), chosen)


def stored_bytes(path: Path) -> int:
    """What the weights of a graph take, without the space between them."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    places = [
        {entry.key: int(entry.value) for entry in t.external_data if entry.key != "location"}
        for t in tensors
    ]
    outside = {place["offset"]: place["length"] for place in places if place}
    return sum(outside.values()) + sum(len(tensor.raw_data) for tensor in tensors)


@pytest.mark.parametrize("role", [TARGET, DRAFT])
@pytest.mark.parametrize("block", [64, 32])
@pytest.mark.parametrize(("backend", "precision"), KINDS)
def test_the_weight_file_is_as_large_as_announced(
    tmp_path: Path, backend: str, precision: str, block: int, role: str
) -> None:
    """A draft borrows the target's table and has a head of its own."""
    if block not in (precision_for(backend, precision).blocks or BLOCKS):
        pytest.skip("blocks of another size")
    make = make_llama if role == TARGET else make_draft
    sizes = {"hidden": 256, "intermediate": 512, "layers": 2, "vocab": 2000}
    make(tmp_path, **sizes, **({"draft_vocab": 1000} if role == DRAFT else {"tied": True}))
    source = open_checkpoint(tmp_path)
    options = BuildOptions("t", "d", backend=backend, precision=precision, block=block, max_len=200)
    spec, kv = source.spec, options.kv_layout(role, source.spec)
    request = GraphRequest(
        role=role,
        spec=spec,
        tensor=source.tensor,
        names=source.tensor_names(),
        limits=options.limits,
        kv=kv,
        precision=precision,
        block=block,
        backend=backend,
        vocab_map=source.draft_map(),
        embedding=(lambda: np.ones((2000, 256), np.float32)) if role == DRAFT else None,
    )
    result = build_graph(request)
    result.save(tmp_path)
    found = estimate_engine(role, spec, kv, options)
    written = stored_bytes(tmp_path / "model.onnx")
    assert abs(written - found.file_bytes) < 0.005 * written
    assert found.num_parameters == result.num_parameters
    assert found.kv_bytes == kv.bytes_for(1)


@pytest.mark.parametrize(("backend", "precision"), KINDS)
def test_only_a_compiled_engine_has_a_plan_and_it_holds_the_weights(
    tmp_path: Path, backend: str, precision: str
) -> None:
    source = open_checkpoint(make_llama(tmp_path))
    found = estimate(source, TARGET, backend=backend, precision=precision, block=32)
    if backend == "onnxruntime":
        assert found.plan_bytes == found.compile_bytes == 0
    else:
        assert found.plan_bytes > found.file_bytes
        assert found.compile_bytes > 2 * found.plan_bytes


def test_a_plan_has_kernels_for_every_kind_of_call(tmp_path: Path) -> None:
    source = open_checkpoint(make_llama(tmp_path))
    options = {"backend": "tensorrt-rtx", "precision": "fp16"}
    drafting, plain = (estimate(source, TARGET, num_draft=k, **options) for k in (4, 0))
    assert drafting.plan_bytes > plain.plan_bytes
