"""A small Llama in torch: enough to train a draft (a target writes with ``generate/decoder.py``).

Weights are a dictionary in Hugging Face names and layout (rows = outputs, the halves of a head
rotated against each other), so a trained draft is stored as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING

from engines.errors import UnsupportedModelError
from export.checkpoint.rope import Llama3Rope
from export.checkpoint.spec import ModelSpec, inv_freq
from export.checkpoint.weights import EMBEDDING, HEAD

if TYPE_CHECKING:
    import torch
    from torch import Tensor


KNOWN_EXTRAS = ("draft_vocab_size", "embeddings_from_target", "qkv_bias")
"""What a ModelSpec may add to a plain Llama that this decoder has; anything else is refused."""


@dataclass(slots=True)
class Llama:
    """The decoder of a Llama or Qwen3 checkpoint. Shares ``weights`` with its caller."""

    spec: ModelSpec
    weights: dict[str, Tensor]
    watch: Callable[[Tensor], None] | None = None  # sees what every norm of the stream reads
    inv_freq: Tensor = field(init=False)  # float32 [D/2], radians a position

    def __post_init__(self) -> None:
        import torch

        self.inv_freq = torch.from_numpy(inv_freq(self.spec)).float().to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where token ids have to be."""
        return self.weights["model.norm.weight"].device

    def to(self, device: str, dtype: torch.dtype | None = None) -> Llama:
        """The same model elsewhere, or in another type; shares the weights that need no change."""
        moved = {name: tensor.to(device, dtype) for name, tensor in self.weights.items()}
        return Llama(self.spec, moved)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Final-norm output [B, T, C] for token ids [B, T]; each attends itself and those before.

        So padding on the right is harmless.
        """
        import torch

        angles = torch.arange(tokens.shape[1], device=self.device)[:, None] * self.inv_freq
        rotary = (angles.cos(), angles.sin())  # [T, D/2]

        states = self.weights[EMBEDDING][tokens]
        for layer in range(self.spec.num_layers):
            states = states + self._attention(layer, states, rotary)
            states = states + self._mlp(layer, states)
        return self._norm(states, "model.norm.weight")

    @property
    def head(self) -> Tensor:
        """Output rows [V, C]: ``lm_head``, or the embedding where the two are tied."""
        return self.weights[EMBEDDING if self.spec.tied_embeddings else HEAD]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of final-norm states [..., C]; V is the row count of ``head``."""
        from torch.nn import functional

        return functional.linear(hidden, self.head)

    def _attention(self, layer: int, states: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        from torch.nn import functional

        prefix = f"model.layers.{layer}"
        normed = self._norm(states, f"{prefix}.input_layernorm.weight")

        def heads(name: str) -> Tensor:
            at = f"{prefix}.self_attn.{name}"
            bias = self.weights[f"{at}.bias"] if self.spec.qkv_bias else None
            projected = functional.linear(normed, self.weights[f"{at}.weight"], bias)
            return projected.reshape(*states.shape[:2], -1, self.spec.head_dim)  # [B, T, heads, D]

        query, key, value = heads("q_proj"), heads("k_proj"), heads("v_proj")
        if self.spec.qk_norm:
            query = self._norm(query, f"{prefix}.self_attn.q_norm.weight")
            key = self._norm(key, f"{prefix}.self_attn.k_norm.weight")
        query = rotate(query.transpose(1, 2), rotary)
        key = rotate(key.transpose(1, 2), rotary)
        value = value.transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).flatten(2)
        return functional.linear(mixed, self.weights[f"{prefix}.self_attn.o_proj.weight"])

    def _mlp(self, layer: int, states: Tensor) -> Tensor:
        from torch.nn import functional

        prefix = f"model.layers.{layer}"
        normed = self._norm(states, f"{prefix}.post_attention_layernorm.weight")
        gate = functional.linear(normed, self.weights[f"{prefix}.mlp.gate_proj.weight"])
        up = functional.linear(normed, self.weights[f"{prefix}.mlp.up_proj.weight"])
        return functional.linear(
            functional.silu(gate) * up, self.weights[f"{prefix}.mlp.down_proj.weight"]
        )

    def _norm(self, states: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        if self.watch is not None and "self_attn" not in name:
            self.watch(states)
        return rms_norm(states, weight, self.spec.rms_norm_eps)


def check_supported(spec: ModelSpec, where: str) -> None:
    """Raise UnsupportedModelError naming what a model has that this decoder lacks."""
    extras = [
        each.name
        for each in fields(spec)
        if each.default is not MISSING
        and each.name not in KNOWN_EXTRAS
        and getattr(spec, each.name) != each.default
    ]
    if spec.rope_scaling is not None and not isinstance(spec.rope_scaling, Llama3Rope):
        extras.append(f"rope scaling {type(spec.rope_scaling).__name__}")
    if extras:
        raise UnsupportedModelError(
            f"{where}: distill cannot train a draft of a {spec.family} with "
            f"{', '.join(extras)}; it knows Llama, Mistral, Qwen2 and Qwen3 without these"
        )


def rms_norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``states`` [..., C] to unit mean square, in float32, times ``weight`` [C]."""
    wide = states.float()
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * scale).to(states.dtype) * weight


def rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of [..., D], halves rotated against each other; cos and sin [..., D/2]."""
    import torch

    cos, sin = rotary
    first, second = heads.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(heads.dtype)
