"""What a decoder checkpoint is: sizes, rotary embedding, output vocabulary.

``ModelSpec`` is all that graph construction knows about a model. It is read here from a Hugging
Face config.json, and in gguf_metadata.py from a GGUF file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields

# architecture -> (family, model_type, head_dim where config.json gives none)
_ARCHITECTURES: dict[str, tuple[str, str, int | None]] = {
    "LlamaForCausalLM": ("llama", "llama", None),
    "Qwen3ForCausalLM": ("qwen3", "qwen3", 128),
}
SUPPORTED = "Llama (LlamaForCausalLM) and Qwen3 (Qwen3ForCausalLM)"


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1's stretching of the rotary frequencies ("rope_type": "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and constants of one decoder. ``head_dim`` is a number of its own: it need not be
    ``hidden_size / num_heads``."""

    family: str  # "llama" | "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Rope | None
    max_position: int
    tied_embeddings: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    draft_vocab_size: int | None = None  # a draft's own output vocabulary; None = the whole one
    embeddings_from_target: bool = False  # no embed_tokens stored: the pair's target lends its own


def inv_freq(spec: ModelSpec) -> npt.NDArray[np.float64]:
    """Rotary angular frequencies, radians per position. float64 ``[head_dim / 2]``.

    Plain: theta^(-2i / head_dim). With ``Llama3Rope`` (Llama 3.1; transformers' "llama3" type) it
    depends on how many turns a frequency makes within the original context:

    - at least ``high_freq_factor`` turns: kept;
    - at most ``low_freq_factor`` turns: divided by ``factor``;
    - between: a blend of the two, linear in the number of turns.
    """
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float64) / spec.head_dim
    plain: npt.NDArray[np.float64] = spec.rope_theta**-exponents
    rope = spec.rope_scaling
    if rope is None:
        return plain
    turns = rope.original_max_position * plain / (2 * np.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    scaled: npt.NDArray[np.float64] = plain * (kept + (1.0 - kept) / rope.factor)
    return scaled


def spec_from_config(config: Mapping[str, object], where: str) -> ModelSpec:
    """Read a Hugging Face config.json. ``where`` names it in errors.

    Raises UnsupportedModelError for what the exporter cannot build (architecture, rope type,
    biases, sliding window, quantised weights), CheckpointError for missing or absurd values.
    Absent fields take the defaults of transformers' configuration of that family.
    """
    fields = Fields(config, where)
    family, default_head_dim = _family(fields)
    _refuse_unsupported(fields)
    vocab_size = fields.integer("vocab_size")
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if default_head_dim is None and fields.get("head_dim") is None:
        default_head_dim = even_share(hidden_size, num_heads, where)
    rope_theta, rope_scaling = _rope(fields)
    max_position = fields.integer("max_position_embeddings")
    num_layers = fields.integer("num_hidden_layers")
    _refuse_sliding_window(fields, family, num_layers, max_position)
    spec = ModelSpec(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.integer("head_dim", default_head_dim),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position=max_position,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        qk_norm=family == "qwen3",
        eos_token_ids=_eos_ids(fields, vocab_size),
        bos_token_id=fields.token_id("bos_token_id", vocab_size),
        draft_vocab_size=_draft_vocab_size(fields, vocab_size),
        embeddings_from_target=fields.flag("embeddings_from_target"),
    )
    check_consistent(spec, where)
    return spec


def even_share(hidden_size: int, num_heads: int, where: str) -> int:
    """Head size of a model that states none. Raises CheckpointError unless it comes out whole."""
    if hidden_size % num_heads:
        raise CheckpointError(
            f"{where}: no head_dim, and hidden size {hidden_size} "
            f"is not a multiple of the {num_heads} attention heads"
        )
    return hidden_size // num_heads


def check_consistent(spec: ModelSpec, where: str) -> None:
    """Raise CheckpointError where the numbers of a spec contradict each other."""
    if spec.num_heads % spec.num_kv_heads:
        raise CheckpointError(
            f"{where}: {spec.num_heads} attention heads cannot share {spec.num_kv_heads} key heads"
        )
    if spec.head_dim % 2:
        raise CheckpointError(
            f"{where}: head_dim {spec.head_dim} must be even for rotary positions"
        )
    if spec.tied_embeddings and (spec.embeddings_from_target or spec.draft_vocab_size is not None):
        raise CheckpointError(
            f"{where}: tie_word_embeddings contradicts embeddings_from_target or draft_vocab_size; "
            "a draft with either needs an lm_head of its own"
        )


def _family(fields: Fields) -> tuple[str, int | None]:
    """Family and its default head_dim, by architecture (by model_type where none is given)."""
    listed = fields.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    model_type = fields.text("model_type", "")
    if not names:
        names = [name for name, known in _ARCHITECTURES.items() if known[1] == model_type]
    known = _ARCHITECTURES.get(names[0]) if names else None
    if known is None or model_type not in ("", known[1]):
        found = f"{names[0] if names else 'no architecture'} (model_type {model_type or 'missing'})"
        raise UnsupportedModelError(
            f"{fields.where}: {found} is not supported; only {SUPPORTED} are"
        )
    family, _, head_dim = known
    return family, head_dim


def _refuse_unsupported(fields: Fields) -> None:
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name):
            raise UnsupportedModelError(f"{fields.where}: {name} true is not supported")
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{fields.where}: hidden_act {activation!r} is not supported, only 'silu' is"
        )
    quantised = fields.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise UnsupportedModelError(
            f"{fields.where}: weights quantised by {method!r} are not supported; "
            "give the unquantised checkpoint (build --precision chooses what the engine uses)"
        )


def _refuse_sliding_window(fields: Fields, family: str, num_layers: int, max_position: int) -> None:
    """A window at least as long as the context hides nothing, so it is not in use."""
    layer_types = fields.get("layer_types")
    if isinstance(layer_types, list):
        other = next((kind for kind in layer_types if kind != "full_attention"), None)
        if other is not None:
            raise UnsupportedModelError(
                f"{fields.where}: layer type {other!r} is not supported, only 'full_attention' is"
            )
    if fields.get("sliding_window") is None:
        return
    window = fields.integer("sliding_window")
    in_use = fields.flag("use_sliding_window", family == "llama")
    # Qwen3 slides from layer max_window_layers on.
    first_layer = fields.integer("max_window_layers", 28, minimum=0) if family == "qwen3" else 0
    if in_use and window < max_position and first_layer < num_layers:
        raise UnsupportedModelError(
            f"{fields.where}: a sliding window of {window} positions is not supported"
        )


def _rope(fields: Fields) -> tuple[float, Llama3Rope | None]:
    """Theta and scaling from rope_parameters (transformers 5) or rope_theta and rope_scaling."""
    blocks = [fields.block(name) for name in ("rope_parameters", "rope_scaling")]
    given = [block for block in blocks if block]
    if len(given) == 2 and _rope_scaling(given[0], fields) != _rope_scaling(given[1], fields):
        raise CheckpointError(
            f"{fields.where}: rope_parameters and rope_scaling contradict each other"
        )
    block = given[0] if given else {}
    inner = Fields(block, f"{fields.where} (rope)")
    theta = fields.number("rope_theta", inner.number("rope_theta", 10000.0))
    if inner.number("rope_theta", theta) != theta:
        raise CheckpointError(
            f"{fields.where}: rope_theta is {theta:g} and {inner.number('rope_theta'):g} "
            "in rope_parameters"
        )
    return theta, _rope_scaling(block, fields)


def _rope_scaling(block: Mapping[str, object], fields: Fields) -> Llama3Rope | None:
    inner = Fields(block, f"{fields.where} (rope)")
    if any(isinstance(value, Mapping) for value in block.values()):
        raise UnsupportedModelError(
            f"{fields.where}: rope parameters per layer type are not supported"
        )
    kind = inner.text("rope_type", inner.text("type", "" if "factor" in block else "default"))
    if inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError(f"{fields.where}: partial_rotary_factor is not supported")
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModelError(
            f"{fields.where}: rope type {kind!r} is not supported, only 'default' and 'llama3' are"
        )
    original = "original_max_position_embeddings"
    holder = fields if inner.get(original) is None else inner
    rope = Llama3Rope(
        factor=inner.number("factor"),
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_max_position=holder.integer(original),
    )
    if rope.high_freq_factor <= rope.low_freq_factor:
        raise CheckpointError(
            f"{fields.where}: high_freq_factor {rope.high_freq_factor:g} must be above "
            f"low_freq_factor {rope.low_freq_factor:g}"
        )
    return rope


def _eos_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
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
