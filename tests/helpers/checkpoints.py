"""Tiny random checkpoints on disk, for every test that needs a model to read.

The folders look like the ones a model hub gives out: config.json, one or more safetensors
files, and a byte-level BPE tokenizer that covers the whole vocabulary, so that whatever a random
model says can be turned into text. ``make_gguf`` (tiny_gguf.py) writes the same weights in
llama.cpp's layout. Equal arguments give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.tiny_gguf import make_gguf
from tests.helpers.tiny_model import (
    BOS_ID,
    CHAT_TEMPLATE,
    EOS_ID,
    SPECIAL_TOKENS,
    bpe_pieces,
    byte_level_tokenizer,
    random_weights,
    to_bfloat16,
)

__all__ = [
    "BOS_ID",
    "CHAT_TEMPLATE",
    "EOS_ID",
    "LLAMA3_ROPE",
    "SPECIAL_TOKENS",
    "bpe_pieces",
    "byte_level_tokenizer",
    "make_draft",
    "make_gguf",
    "make_llama",
    "make_qwen3",
    "random_weights",
    "to_bfloat16",
    "write_safetensors",
]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_llama(folder: Path, **options: Any) -> Path:
    """Write a LlamaForCausalLM folder and return it. Options as ``_make_folder``."""
    return _make_folder(folder, "llama", **options)


def make_qwen3(folder: Path, **options: Any) -> Path:
    """Write a Qwen3ForCausalLM folder: q_norm and k_norm, and a head_dim of its own (16).

    With the default sizes hidden / heads is 8, so a reader that guesses head_dim fails (X1).
    """
    return _make_folder(folder, "qwen3", **{"head_dim": 16, **options})


def make_draft(
    folder: Path,
    *,
    draft_vocab: int = 300,
    vocab: int = 320,
    hidden: int = 32,
    with_map: bool = True,
    offsets: np.ndarray | None = None,
    embeddings_from_target: bool = True,
    seed: int = 100,
    **options: Any,
) -> Path:
    """Write a Llama draft with an output vocabulary of its own, in the form we ship.

    ``d2t`` holds offsets: target id = draft id + d2t[draft id]. By default the draft speaks the
    special tokens and a random choice of the rest, in rising order. No tokenizer.
    """
    rng = np.random.default_rng(seed)
    rest = rng.choice(np.arange(3, vocab), size=draft_vocab - 3, replace=False)
    target_ids = np.concatenate([np.arange(3), np.sort(rest)])
    if offsets is None:
        offsets = target_ids - np.arange(draft_vocab)
    head = rng.normal(0.0, 1.0 / np.sqrt(hidden), size=(draft_vocab, hidden))
    changes: dict[str, np.ndarray | None] = {"lm_head.weight": head.astype(np.float32)}
    if embeddings_from_target:
        changes["model.embed_tokens.weight"] = None
    if with_map:
        changes["d2t"] = offsets.astype(np.int64)
    changes.update(options.pop("tensors", {}))
    extra = {
        "draft_vocab_size": draft_vocab,
        "embeddings_from_target": embeddings_from_target,
        **options.pop("config", {}),
    }
    options = {"tokenizer": False, "layers": 1, **options}
    return _make_folder(
        folder,
        "llama",
        vocab=vocab,
        hidden=hidden,
        seed=seed,
        config=extra,
        tensors=changes,
        **options,
    )


def _make_folder(
    folder: Path,
    family: str,
    *,
    vocab: int = 320,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int = 64,
    tied: bool = False,
    seed: int = 0,
    dtype: str = "F32",
    rope_theta: float = 10000.0,
    rope_scaling: Mapping[str, Any] | None = None,
    max_position: int = 512,
    shards: int = 1,
    tokenizer: bool = True,
    chat_template: bool = True,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray | None] | None = None,
) -> Path:
    """``config`` entries replace those of config.json (None writes null); ``tensors`` replace or
    add weights, and None drops one. ``dtype`` is F32, F16 or BF16; ``shards`` > 1 writes an index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(
        family, vocab, hidden, layers, heads, kv_heads, head_dim, intermediate, tied, seed
    )
    for name, array in (tensors or {}).items():
        if array is None:
            weights.pop(name)
        else:
            weights[name] = array
    document = {
        "architectures": ["LlamaForCausalLM" if family == "llama" else "Qwen3ForCausalLM"],
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": rope_theta,
        "rope_scaling": dict(rope_scaling) if rope_scaling else None,
        "max_position_embeddings": max_position,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
    }
    if head_dim is not None:
        document["head_dim"] = head_dim
    document.update(config or {})
    (folder / "config.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    _write_weights(folder, weights, dtype, shards)
    if tokenizer:
        _write_tokenizer(folder, vocab, chat_template)
    return folder


def write_safetensors(path: Path, weights: Mapping[str, np.ndarray], dtype: str) -> None:
    """Write the safetensors format by hand: an oracle for the reader that shares no code with it.

    Floating-point weights are stored as ``dtype``, integers and bools as they are.
    """
    names = {np.dtype(np.int64): "I64", np.dtype(np.int32): "I32", np.dtype(np.bool_): "BOOL"}
    header: dict[str, Any] = {}
    blocks: list[bytes] = []
    offset = 0
    for name, array in weights.items():
        stored = names.get(array.dtype, dtype)
        if stored == "BF16":
            block = to_bfloat16(array).tobytes()
        elif stored in ("F32", "F16"):
            block = array.astype(np.float32 if stored == "F32" else np.float16).tobytes()
        else:
            block = array.tobytes()
        end = offset + len(block)
        header[name] = {"dtype": stored, "shape": array.shape, "data_offsets": [offset, end]}
        blocks.append(block)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))


def _write_weights(
    folder: Path, weights: Mapping[str, np.ndarray], dtype: str, shards: int
) -> None:
    if shards == 1:
        write_safetensors(folder / "model.safetensors", weights, dtype)
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for index in range(shards):
        file_name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        members = names[index::shards]
        write_safetensors(folder / file_name, {n: weights[n] for n in members}, dtype)
        weight_map.update(dict.fromkeys(members, file_name))
    total = sum(array.nbytes for array in weights.values())
    document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document), encoding="utf-8")


def _write_tokenizer(folder: Path, vocab: int, chat_template: bool) -> None:
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer(vocab))
    document = {
        "bos_token": SPECIAL_TOKENS[BOS_ID],
        "eos_token": {"content": SPECIAL_TOKENS[EOS_ID], "special": True},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if chat_template:
        document["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(document), encoding="utf-8")
