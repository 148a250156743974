"""Read a ``ModelSpec`` and the tensor names from GGUF metadata (architectures llama, qwen3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields
from export.checkpoint.spec import Llama3Rope, ModelSpec, check_consistent, even_share, inv_freq
from export.checkpoint.weights import EMBEDDING, HEAD, Shape

ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor; the name itself where the table has no entry."""
    if gguf_name in _TOP_NAMES:
        return _TOP_NAMES[gguf_name]
    match = _LAYER.fullmatch(gguf_name)
    if match is None or match[2] not in _LAYER_NAMES:
        return gguf_name
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def spec_from_metadata(
    metadata: Mapping[str, object],
    *,
    shapes: Mapping[str, Shape],
    rope_factors: npt.NDArray[np.float32] | None,
    where: str,
) -> ModelSpec:
    """Read the model's description.

    ``shapes`` are those of the stored weights, by Hugging Face name: the embedding's rows are the
    vocabulary, and a model without a head of its own ties it to the embedding. ``rope_factors``
    ``[head_dim / 2]`` are the divisors of the rotary frequencies, where the file stores any.
    Raises UnsupportedModelError and CheckpointError as ``spec_from_config`` does.
    """
    fields = Fields(metadata, where)
    family = fields.text("general.architecture")
    if family not in ("llama", "qwen3"):
        raise UnsupportedModelError(
            f"{where}: GGUF architecture {family!r} is not supported; only 'llama' and 'qwen3' are"
        )
    _refuse_unsupported(fields, family)
    if EMBEDDING not in shapes:
        raise CheckpointError(f"{where}: the tensor token_embd.weight is missing")
    vocab_size = shapes[EMBEDDING][0]
    hidden_size = fields.integer(f"{family}.embedding_length")
    num_heads = fields.integer(f"{family}.attention.head_count")
    head_dim = _head_dim(fields, family, hidden_size, num_heads)
    spec = ModelSpec(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{family}.feed_forward_length"),
        num_layers=fields.integer(f"{family}.block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer(f"{family}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=_shortest(fields.number(f"{family}.attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(fields.number(f"{family}.rope.freq_base", 10000.0)),
        rope_scaling=None,
        max_position=fields.integer(f"{family}.context_length"),
        tied_embeddings=HEAD not in shapes,
        qk_norm=family == "qwen3",
        eos_token_ids=_end_ids(fields, vocab_size),
        bos_token_id=fields.token_id("tokenizer.ggml.bos_token_id", vocab_size),
    )
    check_consistent(spec, where)
    return spec if rope_factors is None else _with_rope_factors(spec, rope_factors, where)


def _refuse_unsupported(fields: Fields, family: str) -> None:
    if fields.integer(f"{family}.expert_count", 0, minimum=0):
        raise UnsupportedModelError(f"{fields.where}: mixture-of-experts models are not supported")
    scaling = fields.text(f"{family}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(
            f"{fields.where}: rope scaling type {scaling!r} is not supported, "
            f"only 'none' and Llama 3's {ROPE_FACTORS} are"
        )
    window = f"{family}.attention.sliding_window"
    if fields.get(window) is not None:
        size = fields.integer(window, minimum=0)
        if 0 < size < fields.integer(f"{family}.context_length"):
            raise UnsupportedModelError(
                f"{fields.where}: a sliding window of {size} positions is not supported"
            )
    if fields.integer("split.count", 1, minimum=0) > 1:
        raise UnsupportedModelError(
            f"{fields.where}: split GGUF files are not supported; "
            "merge them with: llama-gguf-split --merge"
        )


def _head_dim(fields: Fields, family: str, hidden_size: int, num_heads: int) -> int:
    key = f"{family}.attention.key_length"
    if fields.get(key) is None:
        head_dim = even_share(hidden_size, num_heads, fields.where)
    else:
        head_dim = fields.integer(key)
    for other in (f"{family}.attention.value_length", f"{family}.rope.dimension_count"):
        found = fields.integer(other, head_dim)
        if found != head_dim:
            raise UnsupportedModelError(
                f"{fields.where}: {other} {found} differs from the head size {head_dim}, "
                "which is not supported"
            )
    return head_dim


def _end_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """End of sequence, of turn and of message: each of them ends generation."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (fields.token_id(f"tokenizer.ggml.{name}", vocab_size) for name in names)
    return tuple(dict.fromkeys(token for token in found if token is not None))


def _shortest(value: float) -> float:
    """GGUF keeps reals as float32; give back the decimal that was meant (1e-05)."""
    return float(str(np.float32(value)))


def _with_rope_factors(spec: ModelSpec, factors: npt.NDArray[np.float32], where: str) -> ModelSpec:
    """Recover Llama 3's scaling from the divisors that llama.cpp stores in its place.

    Its divisor for the longest wavelength is the factor; the other three parameters have been the
    same in every Llama 3 release. Anything these do not reproduce is refused.
    """
    plain = inv_freq(spec)
    if factors.shape != plain.shape:
        raise CheckpointError(
            f"{where}: {ROPE_FACTORS} has shape {list(factors.shape)}, expected {list(plain.shape)}"
        )
    if not np.all(factors > 0.0):
        raise CheckpointError(f"{where}: {ROPE_FACTORS} holds values that are not above 0")
    if np.all(factors == 1.0):
        return spec
    rope = Llama3Rope(
        factor=_shortest(float(factors[-1])),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=8192,
    )
    scaled = replace(spec, rope_scaling=rope)
    if not np.allclose(plain / factors, inv_freq(scaled), rtol=1e-5, atol=0.0):
        raise UnsupportedModelError(
            f"{where}: {ROPE_FACTORS} is not Llama 3's rope scaling "
            f"(factor {rope.factor:g}, 1, 4, 8192), which is the only one supported"
        )
    return scaled
