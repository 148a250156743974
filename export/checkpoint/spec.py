"""What a decoder checkpoint is: sizes, rotary embedding, and what its family adds to a Llama.

``ModelSpec`` is all that graph construction knows about a model. ``config.py`` reads it from a
Hugging Face config.json, ``gguf_metadata.py`` from a GGUF file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError
from export.checkpoint.rope import RopeScaling, frequencies

SILU, GELU_TANH = "silu", "gelu_tanh"
"""Activations of the gated MLP."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and constants of one decoder. ``head_dim`` is a number of its own: it need not be
    ``hidden_size / num_heads``. The fields with a default are what only some families have."""

    family: str  # a name of ``config.FAMILIES``
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position: int
    tied_embeddings: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    draft_vocab_size: int | None = None  # a draft's own output vocabulary; None = the whole one
    embeddings_from_target: bool = False  # no embed_tokens stored: the pair's target lends its own
    qkv_bias: bool = False
    output_bias: bool = False  # of the projection that ends attention
    fused_projections: bool = False  # stored as qkv_proj and gate_up_proj
    rotary_dim: int | None = None  # rotated dimensions of a head, the first ones; None = all
    local_layers: tuple[bool, ...] = ()  # which layers attend a window; () = none
    window: int | None = None  # positions that a local layer attends, the token's own included
    local_rope_theta: float | None = None  # of the local layers, unscaled; None = as all layers
    activation: str = SILU
    query_scalar: int | None = None  # scores are divided by its root; None = head_dim
    embedding_scale: float = 1.0
    norms_add_one: bool = False  # norms multiply with 1 + weight
    sandwich_norms: bool = False  # norms after attention and MLP as well as before them
    logit_softcap: float | None = None  # logits become softcap * tanh(logits / softcap)

    @property
    def score_scale(self) -> float:
        """What attention multiplies scores with."""
        return float((self.query_scalar or self.head_dim) ** -0.5)

    def is_local(self, layer: int) -> bool:
        return bool(self.local_layers) and self.local_layers[layer]


def inv_freq(spec: ModelSpec, *, local: bool = False) -> npt.NDArray[np.float64]:
    """Rotary angular frequencies, radians per position. float64 ``[rotated dimensions / 2]``.

    ``local`` asks for those of the local layers. ``rope.frequencies`` says how scaling works.
    """
    size = spec.rotary_dim or spec.head_dim
    if local and spec.local_rope_theta is not None:
        return frequencies(spec.local_rope_theta, size, None)
    return frequencies(spec.rope_theta, size, spec.rope_scaling)


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
    least_theta = min(spec.rope_theta, spec.local_rope_theta or spec.rope_theta)
    if least_theta <= 1.0:  # positions would turn faster from one dimension to the next
        raise CheckpointError(f"{where}: rope_theta must be above 1, found {least_theta:g}")
    if spec.head_dim % 2:
        raise CheckpointError(
            f"{where}: head_dim {spec.head_dim} must be even for rotary positions"
        )
    if spec.rotary_dim is not None and not (
        0 < spec.rotary_dim < spec.head_dim and spec.rotary_dim % 2 == 0
    ):
        raise CheckpointError(
            f"{where}: {spec.rotary_dim} rotated dimensions of a head of {spec.head_dim}; "
            "expected an even number"
        )
    if spec.tied_embeddings and (spec.embeddings_from_target or spec.draft_vocab_size is not None):
        raise CheckpointError(
            f"{where}: tie_word_embeddings contradicts embeddings_from_target or draft_vocab_size; "
            "a draft with either needs an lm_head of its own"
        )
