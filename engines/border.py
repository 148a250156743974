"""An engine's inputs and outputs as tensor specs: the table in ``export.graph.api``."""

from __future__ import annotations

from engines.manifest import TARGET, KvLayout
from engines.tensors import DType, TensorSpec


def kv_names(layer: int) -> tuple[str, str]:
    return f"kv.{layer}.key", f"kv.{layer}.value"


def next_name(name: str) -> str:
    """The output that carries an updated cache."""
    return f"{name}.next"


def graph_inputs(role: str, kv: KvLayout, rows: int | str) -> tuple[TensorSpec, ...]:
    """Inputs in call order; ``rows`` is the cache's row dimension: fixed, or bound in buckets."""
    specs = [
        TensorSpec("tokens", DType.INT64, ("B", "T")),
        TensorSpec("positions", DType.INT64, ("B", "T")),
        TensorSpec("write_at", DType.INT64, ("B",)),
        TensorSpec("mask", DType.BOOL, ("B", 1, "T", "L")),
        TensorSpec("logit_rows", DType.INT64, ("B", "R")),
    ]
    if role == TARGET:
        specs.append(TensorSpec("num_draft", DType.INT64, ("B",)))
    return (*specs, *_caches(kv, rows))


def graph_outputs(
    role: str, kv: KvLayout, rows: int | str, output_vocab: int
) -> tuple[TensorSpec, ...]:
    """Outputs in order: what the caller reads, then the updated caches."""
    specs = [TensorSpec("logits", DType.FLOAT32, ("B", "R", output_vocab))]
    if role == TARGET:
        specs.append(TensorSpec("accepted", DType.INT64, ("B",)))
        specs.append(TensorSpec("next", DType.INT64, ("B",)))
    else:
        specs.append(TensorSpec("sample", DType.INT64, ("B", "R")))
    updated = [
        TensorSpec(next_name(spec.name), spec.dtype, spec.shape) for spec in _caches(kv, rows)
    ]
    return (*specs, *updated)


def _caches(kv: KvLayout, rows: int | str) -> list[TensorSpec]:
    shape = ("B", kv.num_kv_heads, rows, kv.head_dim)
    return [
        TensorSpec(name, kv.dtype, shape)
        for layer in range(kv.num_layers)
        for name in kv_names(layer)
    ]
