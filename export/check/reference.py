"""The checkpoint as transformers runs it, in fp32, whatever format it is stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engines.errors import UnsupportedModelError
from export.build.pair import check_pair
from export.checkpoint.api import Checkpoint
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING, HEAD
from export.packages import require

if TYPE_CHECKING:
    import torch

PURPOSE = "comparing an engine with its checkpoint"


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
    """Build the transformers model of ``checkpoint`` and fill in its weights.

    Raises MissingDependencyError, CheckpointError.
    """
    require_transformers()
    weights = {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}
    return _load(checkpoint.spec, weights, checkpoint.name)


def load_draft_reference(draft: Checkpoint, target: Checkpoint) -> Reference:
    """The same for a draft as it runs beside ``target``: with the embeddings that it borrows, and
    without the rows of ids that the target lacks. Its logits are in its own ids [tokens, V'].

    Raises PairError, too.
    """
    require_transformers()
    view = check_pair(target, draft, max_len=1)
    weights = {name: view.tensor(name) for name in draft.tensor_names()}
    if view.spec.embeddings_from_target:
        weights[EMBEDDING] = target.tensor(EMBEDDING)
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

    config_kind, model_kind = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[spec.family]
    config = config_kind(
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
    )
    model: torch.nn.Module = model_kind(config).float()
    if spec.draft_vocab_size is not None:  # transformers has a head for the whole vocabulary only
        model.lm_head = torch.nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
    return model


def _rope_parameters(spec: ModelSpec) -> dict[str, object]:
    rope = spec.rope_scaling
    if rope is None:
        return {"rope_type": "default", "rope_theta": spec.rope_theta}
    return {
        "rope_type": "llama3",
        "rope_theta": spec.rope_theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position,
    }


def require_transformers() -> None:
    """MissingDependencyError where torch or transformers is not installed, BackendError where one
    is broken."""
    for package in ("torch", "transformers"):
        require(package, package, "torch", PURPOSE)
