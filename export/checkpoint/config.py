"""A ``ModelSpec`` from a Hugging Face config.json, family by family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields
from export.checkpoint.layer_kinds import layer_kinds
from export.checkpoint.rope_fields import read_rope
from export.checkpoint.spec import GELU_TANH, SILU, ModelSpec, check_consistent, even_share


@dataclass(frozen=True, slots=True)
class Family:
    """What config.json leaves to the family, with the defaults of transformers' configuration."""

    name: str
    architecture: str
    model_type: str
    title: str
    head_dim: int | None = None  # where none is given; None: hidden size over heads
    num_kv_heads: int | None = None  # where none is named; None: as many as heads
    rms_norm_eps: float = 1e-6
    tied: bool = False
    rope_theta: float = 10000.0
    qk_norm: bool = False
    qkv_bias: bool = False  # always there
    optional_bias: bool = False  # "attention_bias" adds one to all four projections
    fused_projections: bool = False


FAMILIES = (
    Family("llama", "LlamaForCausalLM", "llama", "Llama", optional_bias=True),
    Family("mistral", "MistralForCausalLM", "mistral", "Mistral", num_kv_heads=8),
    Family("qwen2", "Qwen2ForCausalLM", "qwen2", "Qwen2", num_kv_heads=32, qkv_bias=True),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        "qwen3",
        "Qwen3",
        head_dim=128,
        num_kv_heads=32,
        qk_norm=True,
        optional_bias=True,
    ),
    Family(
        "gemma3",
        "Gemma3ForCausalLM",
        "gemma3_text",
        "Gemma 3 text",
        head_dim=256,
        num_kv_heads=4,
        tied=True,
        rope_theta=1e6,
        qk_norm=True,
        optional_bias=True,
    ),
    Family("phi3", "Phi3ForCausalLM", "phi3", "Phi-3", rms_norm_eps=1e-5, fused_projections=True),
)
SUPPORTED = ", ".join(f"{family.title} ({family.architecture})" for family in FAMILIES)


def spec_from_config(config: Mapping[str, object], where: str) -> ModelSpec:
    """Read a Hugging Face config.json. ``where`` names it in errors.

    Raises UnsupportedModelError for what the exporter cannot build (architecture, rope type,
    activation, quantised weights), CheckpointError for missing or absurd values. Absent fields take
    the defaults of transformers' configuration of that family.
    """
    fields = Fields(config, where)
    family = _family(fields)
    _refuse_unsupported(fields, family)
    vocab_size = fields.integer("vocab_size")
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    head_dim = _head_dim(fields, family, hidden_size, num_heads)
    num_layers = fields.integer("num_hidden_layers")
    max_position = fields.integer("max_position_embeddings")
    rope = read_rope(fields, family.name, family.rope_theta, head_dim, max_position)
    kinds = layer_kinds(fields, family.name, num_layers, rope.max_position)
    bias = family.optional_bias and fields.flag("attention_bias")
    spec = ModelSpec(
        family=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, family, num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", family.rms_norm_eps),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        max_position=rope.max_position,
        tied_embeddings=fields.flag("tie_word_embeddings", family.tied),
        qk_norm=family.qk_norm,
        eos_token_ids=end_ids(fields, vocab_size),
        bos_token_id=fields.token_id("bos_token_id", vocab_size),
        draft_vocab_size=_draft_vocab_size(fields, vocab_size),
        embeddings_from_target=fields.flag("embeddings_from_target"),
        qkv_bias=family.qkv_bias or bias,
        output_bias=bias,
        fused_projections=family.fused_projections,
        rotary_dim=rope.rotary_dim,
        local_layers=kinds.local_layers,
        window=kinds.window,
        local_rope_theta=rope.local_theta,
        activation=_activation(fields, family),
    )
    check_consistent(spec, where)
    return _with_gemma(spec, fields) if family.name == "gemma3" else spec


def _family(fields: Fields) -> Family:
    """By architecture; by model_type where none is given."""
    listed = fields.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    model_type = fields.text("model_type", "")
    for family in FAMILIES:
        if names:
            known = names[0] == family.architecture and model_type in ("", family.model_type)
        else:
            known = model_type == family.model_type
        if known:
            return family
    found = f"{names[0] if names else 'no architecture'} (model_type {model_type or 'missing'})"
    raise UnsupportedModelError(f"{fields.where}: {found} is not supported; only {SUPPORTED} are")


def _refuse_unsupported(fields: Fields, family: Family) -> None:
    refused = ["mlp_bias", "use_bidirectional_attention"]
    if not (family.optional_bias or family.qkv_bias):
        refused.append("attention_bias")
    for name in refused:
        if fields.flag(name):
            raise UnsupportedModelError(f"{fields.where}: {name} true is not supported")
    if fields.get("attn_logit_softcapping") is not None:
        raise UnsupportedModelError(
            f"{fields.where}: attn_logit_softcapping (of attention scores) is not supported"
        )
    quantised = fields.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise UnsupportedModelError(
            f"{fields.where}: weights quantised by {method!r} are not supported; "
            "give the unquantised checkpoint (build --precision chooses what the engine uses)"
        )


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if family.head_dim is None and fields.get("head_dim") is None:
        return even_share(hidden_size, num_heads, fields.where)
    return fields.integer("head_dim", family.head_dim)


def _num_kv_heads(fields: Fields, family: Family, num_heads: int) -> int:
    """An explicit null means as many as heads, in every family."""
    name = "num_key_value_heads"
    default = num_heads if fields.has(name) else family.num_kv_heads or num_heads
    return fields.integer(name, default)


def _activation(fields: Fields, family: Family) -> str:
    if family.name == "gemma3":
        name, known = "hidden_activation", {"gelu_pytorch_tanh": GELU_TANH}
    else:
        name, known = "hidden_act", {"silu": SILU, "swish": SILU}
    first = next(iter(known))
    found = fields.text(name, first)
    if found not in known:
        raise UnsupportedModelError(
            f"{fields.where}: {name} {found!r} is not supported, only {first!r} is"
        )
    return known[found]


def _with_gemma(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """What only Gemma 3 has."""
    softcap = "final_logit_softcapping"
    return replace(
        spec,
        query_scalar=fields.integer("query_pre_attn_scalar", 256),
        embedding_scale=float(spec.hidden_size**0.5),
        norms_add_one=True,
        sandwich_norms=True,
        logit_softcap=None if fields.get(softcap) is None else fields.number(softcap),
    )


def end_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """The tokens that end a text, by "eos_token_id": one, a list, or none. CheckpointError."""
    value = fields.get("eos_token_id")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(fields.check_id("eos_token_id", item, vocab_size) for item in listed)


def _draft_vocab_size(fields: Fields, vocab_size: int) -> int | None:
    if fields.get("draft_vocab_size") is None:
        return None
    size = fields.integer("draft_vocab_size")
    if size > vocab_size:
        raise CheckpointError(
            f"{fields.where}: draft_vocab_size {size} is larger than vocab_size {vocab_size}"
        )
    return size
