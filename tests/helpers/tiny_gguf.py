"""Tiny GGUF files: the weights of ``tiny_model`` in llama.cpp's layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.helpers.tiny_model import (
    BOS_ID,
    CHAT_TEMPLATE,
    EOS_ID,
    SPECIAL_TOKENS,
    bpe_pieces,
    random_weights,
)

# Hugging Face name -> GGUF name, inside a layer.
_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def make_gguf(
    folder: Path,
    *,
    family: str = "llama",
    kind: str = "F32",
    vocab: int = 320,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 96,
    tied: bool = False,
    seed: int = 0,
    rope_theta: float = 10000.0,
    rope_factors: npt.ArrayLike | None = None,
    max_position: int = 512,
    pre: str = "gpt-2",
    chat_template: bool = True,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
    blocks: Mapping[str, tuple[str, np.ndarray]] | None = None,
) -> Path:
    """Write FOLDER/tiny-KIND.gguf and return its path.

    Matrices are stored as ``kind`` (F32, F16, BF16, Q8_0, Q4_0, Q4_1, ...), vectors as F32, and
    the weights are those of ``random_weights`` with the same arguments. ``metadata`` adds or
    replaces entries by key (str, bool, int, float, None drops one), ``tensors`` adds or replaces
    F32 tensors by GGUF name, and None drops one. ``blocks`` replaces tensors by a type and raw
    bytes [rows, bytes a row].
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tiny-{kind}.gguf"
    dim = head_dim or hidden // heads
    weights = random_weights(
        family, vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, tied, seed
    )
    writer = GGUFWriter(path, family)
    entries: dict[str, Any] = {
        f"{family}.block_count": layers,
        f"{family}.context_length": max_position,
        f"{family}.embedding_length": hidden,
        f"{family}.feed_forward_length": intermediate,
        f"{family}.attention.head_count": heads,
        f"{family}.attention.head_count_kv": kv_heads,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": rope_theta,
        f"{family}.rope.dimension_count": dim,
        f"{family}.vocab_size": vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.add_bos_token": False,
    }
    if family == "qwen3":
        entries["qwen3.attention.key_length"] = dim
        entries["qwen3.attention.value_length"] = dim
    if chat_template:
        entries["tokenizer.chat_template"] = CHAT_TEMPLATE
    entries.update(metadata or {})
    for key, value in entries.items():
        _add_entry(writer, key, value)
    tokens, merges = bpe_pieces(vocab)
    padding = [f"[PAD{index}]" for index in range(len(tokens), vocab)]
    writer.add_token_list(tokens + padding)
    control, normal, unused = 3, 1, 5
    plain = len(tokens) - len(SPECIAL_TOKENS)
    writer.add_token_types(
        [control] * len(SPECIAL_TOKENS) + [normal] * plain + [unused] * len(padding)
    )
    writer.add_token_merges([f"{left} {right}" for left, right in merges])

    quant = GGMLQuantizationType[kind]
    changed = tensors or {}
    raw = blocks or {}
    for name, array in weights.items():
        gguf_name = _gguf_name(name)
        if gguf_name in changed or gguf_name in raw:
            continue
        if family == "llama" and "q_proj" in name:
            array = _interleave_rotary_rows(array, heads)
        if family == "llama" and "k_proj" in name:
            array = _interleave_rotary_rows(array, kv_heads)
        if array.ndim == 1:
            writer.add_tensor(gguf_name, array)
        else:
            writer.add_tensor(gguf_name, quantize(array, quant), raw_dtype=quant)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_factors, dtype=np.float32))
    for name, replacement in changed.items():
        if replacement is not None:
            writer.add_tensor(name, replacement.astype(np.float32))
    for name, (stored, data) in raw.items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[stored])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_entry(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP_NAMES:
        return _GGUF_TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_GGUF_LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def _interleave_rotary_rows(matrix: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring rows (2i, 2i+1) where Hugging Face rotates (i, i + D/2)."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
