"""Which weights a model must have, and the checks every reader makes on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError
from export.checkpoint.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_LFS_POINTER = b"version https://git-lfs"

Shape = tuple[int, ...]


def weight_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every weight the model must have, by Hugging Face name, with its shape."""
    shapes: dict[str, Shape] = {}
    hidden = spec.hidden_size
    if not spec.embeddings_from_target:
        shapes[EMBEDDING] = (spec.vocab_size, hidden)
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        for part, shape in layer.items():
            shapes[f"model.layers.{index}.{part}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tied_embeddings:
        rows = spec.vocab_size if spec.draft_vocab_size is None else spec.draft_vocab_size
        shapes[HEAD] = (rows, hidden)
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The weights of one layer."""
    hidden, inner, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    query, key = spec.num_heads * dim, spec.num_kv_heads * dim
    norms: dict[str, Shape] = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    if spec.sandwich_norms:
        norms |= {"pre_feedforward_layernorm": (hidden,), "post_feedforward_layernorm": (hidden,)}
    if spec.qk_norm:
        norms |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    matrices: dict[str, Shape] = {}
    if spec.fused_projections:
        matrices["self_attn.qkv_proj"] = (query + 2 * key, hidden)
        matrices["mlp.gate_up_proj"] = (2 * inner, hidden)
    else:
        matrices |= {"self_attn.q_proj": (query, hidden)}
        matrices |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (key, hidden))
        matrices |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (inner, hidden))
    matrices |= {"self_attn.o_proj": (hidden, query), "mlp.down_proj": (hidden, inner)}
    biased = ["q_proj", "k_proj", "v_proj"] if spec.qkv_bias else []
    biased += ["o_proj"] if spec.output_bias else []
    shapes = {f"{name}.weight": shape for name, shape in (norms | matrices).items()}
    for name in (f"self_attn.{each}" for each in biased):
        shapes[f"{name}.bias"] = matrices[name][:1]
    return shapes


def check_shapes(spec: ModelSpec, found: Mapping[str, Shape], where: str) -> None:
    """Raise CheckpointError for a weight that is missing or does not have the spec's shape."""
    if spec.num_layers > len(found):  # before a table for that many layers is made
        raise CheckpointError(
            f"{where}: the configuration asks for {spec.num_layers} layers, "
            f"but only {len(found)} weights are stored"
        )
    for name, shape in weight_shapes(spec).items():
        if name not in found:
            raise CheckpointError(
                f"{where}: the weight {name} {list(shape)} is missing{_other_prefix(name, found)}"
            )
        if found[name] != shape:
            raise CheckpointError(
                f"{where}: {name} has shape {list(found[name])}, "
                f"but the configuration asks for {list(shape)}"
            )


def check_places(spec: ModelSpec, names: Iterable[str], where: str) -> None:
    """Raise CheckpointError for a stored weight that the model has no place for."""
    without = sorted(set(names) - weight_shapes(spec).keys())
    if without:
        raise CheckpointError(
            f"{where}: {len(without)} weight(s) have no place in a {spec.family} graph, first "
            f"{without[0]}, and none is dropped in silence: correct config.json, or give the "
            "checkpoint of the language model alone"
        )


def _other_prefix(name: str, found: Iterable[str]) -> str:
    """That a weight is stored under a longer or shorter name, after a semicolon, if it is."""
    short = name.removeprefix("model.")
    other = next((each for each in found if each == short or each.endswith(f".{short}")), None)
    if other is None:
        return ""
    return (
        f"; {other} is there: of a model without its head, or a part of a larger one. Save the "
        "language model with its head as a checkpoint of its own (AutoModelForCausalLM)"
    )


def advice_on(path: Path) -> str:
    """What to do about a file that is no weight file, after a semicolon; "" where that is open."""
    with path.open("rb") as file:
        is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    return "; it is a pointer of Git LFS, fetch the file itself: git lfs pull" if is_pointer else ""


def finite(array: npt.NDArray[np.float32], name: str, where: str) -> npt.NDArray[np.float32]:
    """The array itself. Raises CheckpointError naming the tensor if it holds NaN or infinity."""
    # A sum is finite unless an element is not (or it overflows): no mask the size of the weights.
    with np.errstate(all="ignore"):
        suspicious = not np.isfinite(array.sum(dtype=np.float64))
    if suspicious and not np.isfinite(array).all():
        bad = int(np.size(array) - np.count_nonzero(np.isfinite(array)))
        raise CheckpointError(
            f"{where}: {name} holds {bad} values that are NaN or infinite; "
            "fetch or copy the checkpoint again, or train it anew"
        )
    return array


def digest(files: Iterable[Path]) -> str:
    """SHA-256 over the names and bytes of files, in the order given. Reads them as a stream."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            part = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{path.name}\0{part}\n".encode())
    return total.hexdigest()
