"""The checkpoint as transformers runs it, in fp32, whatever format it is stored in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engines.errors import UnsupportedModelError
from export.build.pair import check_pair, view_target
from export.checkpoint.api import Checkpoint
from export.checkpoint.layer_kinds import FULL, SLIDING
from export.checkpoint.rope import LinearRope, Llama3Rope, LongRope, YarnRope
from export.checkpoint.rope_fields import ORIGINAL
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING, HEAD
from export.packages import require

if TYPE_CHECKING:
    import torch

PURPOSE = "comparing an engine with its checkpoint"

_KINDS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "phi3": ("Phi3Config", "Phi3ForCausalLM"),
}
"""Names in transformers, by family."""


class Reference:
    """A loaded transformers model. Build it with ``load_reference``."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """Logits of every position. [tokens, V]."""
        import torch

        with torch.inference_mode():
            logits = self._model(torch.tensor([ids]), use_cache=False).logits[0]
        array: npt.NDArray[np.float32] = logits.float().numpy()
        return array

    def continue_greedily(self, ids: list[int], num_tokens: int) -> list[int]:
        """Up to ``num_tokens`` most likely next tokens, ending with an end-of-text token."""
        import torch

        prompt = torch.tensor([ids])
        with torch.inference_mode():
            text = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,  # one text is never padded; unset, transformers warns
            )
        return [int(token) for token in text[0, len(ids) :]]


def load_reference(checkpoint: Checkpoint) -> Reference:
    """Build the transformers model of ``checkpoint`` and fill in its weights, without the padding
    of its vocabulary.

    Raises MissingDependencyError, CheckpointError.
    """
    require_transformers()
    view = view_target(checkpoint)
    weights = {name: view.tensor(name) for name in checkpoint.tensor_names()}
    return _load(view.spec, weights, checkpoint.name)


def load_draft_reference(draft: Checkpoint, target: Checkpoint) -> Reference:
    """The same for a draft as it runs beside ``target``: with the embeddings that it borrows, and
    without the rows of ids that the target lacks. Its logits are in its own ids [tokens, V'].

    Raises PairError, too.
    """
    require_transformers()
    view = check_pair(target, draft, max_len=1)
    weights = {name: view.tensor(name) for name in draft.tensor_names()}
    if view.spec.embeddings_from_target:
        weights[EMBEDDING] = target.tensor(EMBEDDING)[: view.spec.vocab_size]
    return _load(view.spec, weights, draft.name)


def _load(spec: ModelSpec, weights: dict[str, npt.NDArray[np.float32]], name: str) -> Reference:
    import torch

    model = _empty_model(spec)
    missing, unexpected = model.load_state_dict(
        {key: torch.from_numpy(value) for key, value in weights.items()}, strict=False
    )
    lost = set(missing) - ({HEAD} if spec.tied_embeddings else set())
    if lost or unexpected:
        raise UnsupportedModelError(
            f"transformers has another idea of {name}: it lacks "
            f"{sorted(lost) or 'nothing'} and does not know {list(unexpected) or 'nothing'}"
        )
    return Reference(model.eval())


def _empty_model(spec: ModelSpec) -> torch.nn.Module:
    import torch
    import transformers

    config_kind, model_kind = _KINDS[spec.family]
    config = getattr(transformers, config_kind)(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=spec.max_position,
        tie_word_embeddings=spec.tied_embeddings,
        rope_parameters=_rope_parameters(spec),
        bos_token_id=spec.bos_token_id,
        eos_token_id=list(spec.eos_token_ids),
        pad_token_id=None,
        **_family_options(spec),
    )
    model: torch.nn.Module = getattr(transformers, model_kind)(config).float()
    if spec.draft_vocab_size is not None:  # transformers has a head for the whole vocabulary only
        model.lm_head = torch.nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
    return model


def _family_options(spec: ModelSpec) -> dict[str, object]:
    """What the configuration of a family has beyond the common fields."""
    options: dict[str, object] = {}
    if spec.family in ("llama", "qwen3", "gemma3"):
        options["attention_bias"] = spec.output_bias
    if spec.family != "llama":
        options["sliding_window"] = spec.window
    if spec.family in ("qwen2", "qwen3", "gemma3"):
        options["use_sliding_window"] = spec.window is not None
        layers = range(spec.num_layers)
        options["layer_types"] = [SLIDING if spec.is_local(layer) else FULL for layer in layers]
    if spec.family == "gemma3":
        # transformers takes no layer for local without a window: one that hides nothing.
        options["sliding_window"] = spec.window or spec.max_position
        options["query_pre_attn_scalar"] = spec.query_scalar
        options["final_logit_softcapping"] = spec.logit_softcap
    if spec.family == "phi3":
        options["original_max_position_embeddings"] = spec.max_position
    return options


def _rope_parameters(spec: ModelSpec) -> dict[str, object]:
    block = {"rope_theta": spec.rope_theta, **_scaling(spec)}
    if spec.family == "gemma3":
        local = {"rope_type": "default", "rope_theta": spec.local_rope_theta}
        return {FULL: block, SLIDING: local}
    if spec.rotary_dim is not None:
        block["partial_rotary_factor"] = spec.rotary_dim / spec.head_dim
    return block


def _scaling(spec: ModelSpec) -> dict[str, object]:
    match spec.rope_scaling:
        case None:
            return {"rope_type": "default"}
        case LinearRope() as rope:
            return {"rope_type": "linear", **asdict(rope)}
        case LongRope() as rope:
            factors = list(rope.short_factors)
            return {
                "rope_type": "longrope",
                "short_factor": factors,
                "long_factor": factors,
                "attention_factor": rope.attention_factor,
                ORIGINAL: spec.max_position,
            }
        case Llama3Rope() as rope:
            kind = "llama3"
        case YarnRope() as rope:
            kind = "yarn"
    fields = asdict(rope)
    return {"rope_type": kind, ORIGINAL: fields.pop("original_max_position"), **fields}


def require_transformers() -> None:
    """MissingDependencyError where torch or transformers is not installed, BackendError where one
    is broken."""
    for package in ("torch", "transformers"):
        require(package, package, "torch", PURPOSE)
