"""Read a ``ModelSpec`` and the tensor names from GGUF metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields
from export.checkpoint.gguf_rope import RopeFactors, read_rope, shortest
from export.checkpoint.layer_kinds import DEFAULT_PATTERN
from export.checkpoint.spec import GELU_TANH, ModelSpec, check_consistent, even_share
from export.checkpoint.weights import EMBEDDING, HEAD, Shape

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")

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
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


def hf_name(gguf_name: str, architecture: str) -> str:
    """The Hugging Face name of a GGUF tensor; the name itself where the tables have no entry."""
    if gguf_name in _TOP_NAMES:
        return _TOP_NAMES[gguf_name]
    match = _LAYER.fullmatch(gguf_name)
    if match is None:
        return gguf_name
    names = _LAYER_NAMES | _OTHER_NAMES.get(architecture, {})
    if match[2] not in names:
        return gguf_name
    return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"


def architecture_of(metadata: Mapping[str, object], where: str) -> str:
    """One of ``ARCHITECTURES``. Raises UnsupportedModelError for another."""
    name = Fields(metadata, where).text("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{where}: GGUF architecture {name!r} is not supported, "
            f"only {', '.join(ARCHITECTURES)} are"
        )
    return name


def spec_from_metadata(
    metadata: Mapping[str, object],
    *,
    shapes: Mapping[str, Shape],
    rope_factors: RopeFactors,
    where: str,
) -> ModelSpec:
    """Read the model's description.

    ``shapes`` are those of the stored weights, by Hugging Face name: the embedding's rows are the
    vocabulary, a model without a head of its own ties it to the embedding, and attention has
    biases where some are stored. ``rope_factors`` are the divisors of the rotary frequencies that
    the file stores as tensors. Raises UnsupportedModelError and CheckpointError as
    ``spec_from_config`` does.
    """
    fields = Fields(metadata, where)
    arch = architecture_of(metadata, where)
    _refuse_unsupported(fields, arch)
    if EMBEDDING not in shapes:
        raise CheckpointError(f"{where}: the tensor token_embd.weight is missing")
    vocab_size = shapes[EMBEDDING][0]
    hidden_size = fields.integer(f"{arch}.embedding_length")
    num_heads = fields.integer(f"{arch}.attention.head_count")
    head_dim = _head_dim(fields, arch, hidden_size, num_heads)
    max_position = fields.integer(f"{arch}.context_length")
    attention = "model.layers.0.self_attn"
    spec = ModelSpec(
        family=arch,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{arch}.feed_forward_length"),
        num_layers=fields.integer(f"{arch}.block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=shortest(fields.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        rope_theta=shortest(fields.number(f"{arch}.rope.freq_base", 10000.0)),
        rope_scaling=None,
        max_position=max_position,
        tied_embeddings=HEAD not in shapes,
        qk_norm=arch in ("qwen3", "gemma3"),
        eos_token_ids=_end_ids(fields, vocab_size),
        bos_token_id=fields.token_id("tokenizer.ggml.bos_token_id", vocab_size),
        qkv_bias=f"{attention}.q_proj.bias" in shapes,
        output_bias=f"{attention}.o_proj.bias" in shapes,
        fused_projections=arch == "phi3",
        rotary_dim=_rotary_dim(fields, arch, head_dim),
    )
    if arch == "gemma3":
        spec = _with_gemma(spec, fields)
    check_consistent(spec, where)
    return _with_window(read_rope(spec, fields, arch, rope_factors), fields)


def _refuse_unsupported(fields: Fields, arch: str) -> None:
    if fields.integer(f"{arch}.expert_count", 0, minimum=0):
        raise UnsupportedModelError(f"{fields.where}: mixture-of-experts models are not supported")
    if fields.get(f"{arch}.attn_logit_softcapping") is not None:
        raise UnsupportedModelError(
            f"{fields.where}: attn_logit_softcapping (of attention scores) is not supported"
        )
    if fields.integer("split.count", 1, minimum=0) > 1:
        raise UnsupportedModelError(
            f"{fields.where}: split GGUF files are not supported; "
            "merge them with: llama-gguf-split --merge"
        )


def _with_gemma(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """What a Gemma 3 file leaves to its reader, as llama.cpp fills it in."""
    every = fields.integer("gemma3.attention.sliding_window_pattern", DEFAULT_PATTERN)
    softcap = "gemma3.final_logit_softcapping"
    # Gemma 3 27B alone, known by its number of layers, scales by the width that heads share.
    is_27b = spec.num_layers == 62
    local = fields.number("gemma3.rope.freq_base_swa", 10000.0)
    return replace(
        spec,
        local_layers=tuple((layer + 1) % every != 0 for layer in range(spec.num_layers)),
        local_rope_theta=shortest(local),
        rope_theta=shortest(fields.number("gemma3.rope.freq_base", 1e6)),
        activation=GELU_TANH,
        query_scalar=spec.hidden_size // spec.num_heads if is_27b else spec.head_dim,
        embedding_scale=float(spec.hidden_size**0.5),
        norms_add_one=True,
        sandwich_norms=True,
        logit_softcap=shortest(fields.number(softcap)) if fields.has(softcap) else None,
    )


def _with_window(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """A window as long as the context hides nothing, so it is not in use."""
    window = fields.integer(f"{spec.family}.attention.sliding_window", 0, minimum=0)
    if not 0 < window < spec.max_position:
        return spec
    if spec.family == "gemma3":
        return replace(spec, window=window)
    # A Llama has no window: the file is of its one sibling of the same tensors that has.
    family = "mistral" if spec.family == "llama" else spec.family
    return replace(spec, family=family, window=window, local_layers=(True,) * spec.num_layers)


def _head_dim(fields: Fields, arch: str, hidden_size: int, num_heads: int) -> int:
    key, value = f"{arch}.attention.key_length", f"{arch}.attention.value_length"
    if fields.get(key) is None:
        head_dim = even_share(hidden_size, num_heads, fields.where)
    else:
        head_dim = fields.integer(key)
    if fields.integer(value, head_dim) != head_dim:
        raise _other_size(fields, value, head_dim)
    return head_dim


def _rotary_dim(fields: Fields, arch: str, head_dim: int) -> int | None:
    """Rotated dimensions of a head, None for all of them. Only Phi-3 rotates a part."""
    name = f"{arch}.rope.dimension_count"
    found = fields.integer(name, head_dim)
    if found == head_dim:
        return None
    if arch != "phi3":
        raise _other_size(fields, name, head_dim)
    return found


def _other_size(fields: Fields, name: str, head_dim: int) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{fields.where}: {name} {fields.get(name)} differs from the head size {head_dim}, "
        "which is not supported"
    )


def _end_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """End of sequence, of turn and of message: each of them ends generation."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (fields.token_id(f"tokenizer.ggml.{name}", vocab_size) for name in names)
    return tuple(dict.fromkeys(token for token in found if token is not None))
