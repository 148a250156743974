"""ONNX Runtime's engines, byte for byte: what is done for other backends must not move them.

A hash covers nodes, attributes, initializers and their bytes. It changes when an engine is meant to
change; then every bundle must be built again, and the figures in the README measured again.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from engines.manifest import DRAFT, TARGET
from export.build.options import BuildOptions
from export.checkpoint.api import open_checkpoint
from export.checkpoint.weights import weight_shapes
from export.graph.api import GraphRequest, build_graph
from tests.helpers.checkpoints import make_llama, make_qwen3

EXPECTED = {
    ("llama", "fp32", TARGET, True): "fb98d283eb1a91cd",
    ("llama", "int8", TARGET, True): "b03ac8e8746b416e",
    ("llama", "int8", TARGET, False): "f92be0fdfc13aecd",
    ("qwen3", "fp32", TARGET, False): "3b5c5f0562f561cc",
    ("qwen3", "int8", TARGET, True): "63bbfd5d9e082331",
    ("llama", "fp32", DRAFT, False): "99af5ce3092511f1",
    ("llama", "int8", DRAFT, False): "c5e48251a8f8e092",
}


def counted(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights from integer arithmetic: the same on every machine and in every numpy."""
    seed = zlib.crc32(name.encode())
    index = np.arange(np.prod(shape), dtype=np.uint64)
    scattered = (index * np.uint64(2654435761) + np.uint64(seed)) % np.uint64(2**20)
    return (scattered.astype(np.float32) / 2**19 - 1).reshape(shape)


def digest(folder: Path) -> str:
    """Over the content of both files, however a library lays ``model.onnx`` out.

    The nodes that choose tokens are left out: their functions are tested with the operators.
    """
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    facts = [
        f"{node.op_type} {node.name} {list(node.input)} {list(node.output)} "
        f"{sorted((a.name, a.i, a.f, a.s, tuple(a.ints)) for a in node.attribute)}"
        for node in model.graph.node
        if node.op_type not in ("Verify", "Sample")
    ]
    for tensor in model.graph.initializer:
        place = sorted((entry.key, entry.value) for entry in tensor.external_data)
        facts.append(
            f"{tensor.name} {tensor.data_type} {list(tensor.dims)} {place} {tensor.raw_data.hex()}"
        )
    facts += [
        f"{value.name} {value.type.tensor_type.elem_type} "
        f"{[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]}"
        for value in (*model.graph.input, *model.graph.output)
    ]
    total = hashlib.sha256("\n".join(facts).encode())
    total.update((folder / "model.onnx.data").read_bytes())
    return total.hexdigest()[:16]


@pytest.mark.parametrize(("family", "precision", "role", "tied"), EXPECTED)
def test_an_onnxruntime_engine_is_what_it_was(tmp_path, family, precision, role, tied):
    make = {"llama": make_llama, "qwen3": make_qwen3}[family]
    make(tmp_path, hidden=64, intermediate=128, tied=tied, tokenizer=False)
    spec = open_checkpoint(tmp_path).spec
    options = BuildOptions("t", precision=precision, max_len=64, num_draft=3, max_branches=2)
    shapes = weight_shapes(spec)
    request = GraphRequest(
        role=role,
        spec=spec,
        tensor=lambda name: counted(name, shapes[name]),
        names=tuple(shapes),
        limits=options.limits,
        kv=options.kv_layout(role, spec),
        precision=precision,
        block=options.block,
        backend=options.backend,
        vocab_map=np.arange(spec.vocab_size) if role == DRAFT else None,
    )
    build_graph(request).save(tmp_path)
    assert digest(tmp_path) == EXPECTED[family, precision, role, tied]
