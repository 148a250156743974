"""A pass of the target over tokens of any rows, laid end to end: for writing, not for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from export.checkpoint.weights import EMBEDDING
from export.distill.generate.products import Product, product
from export.distill.llama import Llama, rms_norm, rotate

if TYPE_CHECKING:
    from torch import Tensor


class Attend(Protocol):
    """Whose keys and values each token of a pass attends."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep ``key`` and ``value`` [N, Hkv, D]; return what ``query`` [N, H, D] finds, alike."""
        ...


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: Tensor
    qkv: Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Product
    before_mlp: Tensor
    gate: Product
    up: Product
    down: Product


class Decoder:
    """``model`` with products that read alike in one, and weights laid out for the processor.

    Keeps copies of the weights, of all of them where they are laid out anew: twice their memory.
    """

    def __init__(self, model: Llama) -> None:
        self._spec, self._weights = model.spec, model.weights
        self._inv_freq = model.inv_freq
        self._layers = [self._layer(number) for number in range(model.spec.num_layers)]
        self._head = product(model.head)

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final-norm output [N, C] of token ids [N] at ``positions`` [N]."""
        angles = positions[:, None, None].float() * self._inv_freq  # [N, 1, D/2]
        rotary = (angles.cos(), angles.sin())
        states = self._weights[EMBEDDING][tokens]
        for number, layer in enumerate(self._layers):
            query, key, value = self._heads(layer, self._norm(states, layer.before_attention))
            found = attend(number, rotate(query, rotary), rotate(key, rotary), value)
            states = layer.output.plus(found.flatten(1), states)
            normed = self._norm(states, layer.before_mlp)
            gated = layer.up.times(normed, layer.gate.silu(normed))
            states = layer.down.plus(gated, states)
        return self._norm(states, self._weights["model.norm.weight"])

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of final-norm states [N, C]."""
        return self._head.plain(hidden)

    def _layer(self, number: int) -> _Layer:
        import torch

        at, weights = f"model.layers.{number}", self._weights
        parts = [f"{at}.self_attn.{part}_proj" for part in "qkv"]
        bias = None
        if self._spec.qkv_bias:
            bias = torch.cat([weights[f"{part}.bias"] for part in parts])
        return _Layer(
            before_attention=weights[f"{at}.input_layernorm.weight"],
            qkv=product(torch.cat([weights[f"{part}.weight"] for part in parts]), bias),
            query_norm=weights.get(f"{at}.self_attn.q_norm.weight"),
            key_norm=weights.get(f"{at}.self_attn.k_norm.weight"),
            output=product(weights[f"{at}.self_attn.o_proj.weight"]),
            before_mlp=weights[f"{at}.post_attention_layernorm.weight"],
            gate=product(weights[f"{at}.mlp.gate_proj.weight"]),
            up=product(weights[f"{at}.mlp.up_proj.weight"]),
            down=product(weights[f"{at}.mlp.down_proj.weight"]),
        )

    def _heads(self, layer: _Layer, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [N, heads, D], normed where the model does that."""
        heads = layer.qkv.plain(normed).view(len(normed), -1, self._spec.head_dim)
        last_query = self._spec.num_heads
        last_key = last_query + self._spec.num_kv_heads
        query, key = heads[:, :last_query], heads[:, last_query:last_key]
        value = heads[:, last_key:]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        return query, key, value

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(states, weight, self._spec.rms_norm_eps)
