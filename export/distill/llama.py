"""A small Llama in torch: enough to train a draft and to let a target write its training text.

Weights are a dictionary in Hugging Face names and layout (rows = outputs, the halves of a head
rotated against each other), so a trained draft is stored as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from export.checkpoint.spec import ModelSpec, inv_freq
from export.checkpoint.weights import EMBEDDING, HEAD

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class KvCache:
    """Keys and values of one batch: two tensors [B, Hkv, rows, D] a layer, ``length`` rows used."""

    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write [B, Hkv, T, D] after the used rows and return all rows up to the new end."""
        end = self.length + key.shape[2]
        self.keys[layer][:, :, self.length : end] = key
        self.values[layer][:, :, self.length : end] = value
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


@dataclass(slots=True)
class Llama:
    """The decoder of a Llama or Qwen3 checkpoint. Shares ``weights`` with its caller."""

    spec: ModelSpec
    weights: dict[str, Tensor]
    _inv_freq: Tensor = field(init=False)  # float32 [D/2], radians a position

    def __post_init__(self) -> None:
        import torch

        self._inv_freq = torch.from_numpy(inv_freq(self.spec)).float()

    def new_cache(self, batch: int, rows: int) -> KvCache:
        """Zeroed cache of ``rows`` positions in the type of the weights."""
        import torch

        dtype = self.weights["model.norm.weight"].dtype
        shape = (batch, self.spec.num_kv_heads, rows, self.spec.head_dim)
        layers = range(self.spec.num_layers)
        return KvCache(
            [torch.zeros(shape, dtype=dtype) for _ in layers],
            [torch.zeros(shape, dtype=dtype) for _ in layers],
        )

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KvCache | None = None,
    ) -> Tensor:
        """Final-norm output [B, T, C] for token ids [B, T].

        ``positions`` [B, T] default to 0..T-1. ``mask`` is bool [B, 1, T, rows], True = attend;
        without it attention is causal, which also makes padding on the right harmless.
        With a ``cache`` the T tokens are appended to it, and a mask is needed.
        """
        import torch

        if positions is None:
            positions = torch.arange(tokens.shape[1])[None]
        angles = positions[..., None].float() * self._inv_freq  # [B, T, D/2]
        rotary = (angles.cos()[:, None], angles.sin()[:, None])  # [B, 1, T, D/2]

        states = self.weights[EMBEDDING][tokens]
        for layer in range(self.spec.num_layers):
            states = states + self._attention(layer, states, rotary, mask, cache)
            states = states + self._mlp(layer, states)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self._norm(states, "model.norm.weight")

    @property
    def head(self) -> Tensor:
        """Output rows [V, C]: ``lm_head``, or the embedding where the two are tied."""
        return self.weights[EMBEDDING if self.spec.tied_embeddings else HEAD]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of final-norm states [..., C]; V is the row count of ``head``."""
        from torch.nn import functional

        return functional.linear(hidden, self.head)

    def _attention(
        self,
        layer: int,
        states: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: KvCache | None,
    ) -> Tensor:
        from torch.nn import functional

        prefix = f"model.layers.{layer}"
        normed = self._norm(states, f"{prefix}.input_layernorm.weight")

        def heads(name: str) -> Tensor:
            projected = functional.linear(normed, self.weights[f"{prefix}.self_attn.{name}.weight"])
            return projected.reshape(*states.shape[:2], -1, self.spec.head_dim)  # [B, T, heads, D]

        query, key, value = heads("q_proj"), heads("k_proj"), heads("v_proj")
        if self.spec.qk_norm:
            query = self._norm(query, f"{prefix}.self_attn.q_norm.weight")
            key = self._norm(key, f"{prefix}.self_attn.k_norm.weight")
        query = rotate(query.transpose(1, 2), rotary)
        key = rotate(key.transpose(1, 2), rotary)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = cache.append(layer, key, value)
        if query.shape[2] == 1:
            # The query heads that share keys become rows of one head: five times as fast as
            # letting torch spread the keys over the query heads.
            grouped = query.reshape(len(query), self.spec.num_kv_heads, -1, self.spec.head_dim)
            mixed = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask)
            mixed = mixed.reshape(len(query), 1, -1)
        else:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
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
        wide = states.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.spec.rms_norm_eps).rsqrt()
        return (wide * scale).to(states.dtype) * weight


def rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of [B, heads, T, D], halves rotated against each other."""
    import torch

    cos, sin = rotary
    first, second = heads.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(heads.dtype)
