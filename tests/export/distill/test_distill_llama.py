"""The torch Llama that trains and writes must be the model that the checkpoint describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UnsupportedModelError
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.spec import inv_freq
from export.distill.llama import Llama, check_supported
from tests.helpers.checkpoints import LLAMA3_ROPE, make_llama, make_qwen3

pytestmark = pytest.mark.torch

MODELS = {
    "llama": (make_llama, {}),
    "tied": (make_llama, {"tied": True}),
    "llama3-rope": (make_llama, {"rope_scaling": LLAMA3_ROPE}),
    "qwen3": (make_qwen3, {}),
}


def numpy_logits(checkpoint: Checkpoint, tokens: np.ndarray) -> np.ndarray:
    """Logits [T, V] of token ids [T]: one sequence, one head at a time, float64."""
    spec = checkpoint.spec

    def weight(name: str) -> np.ndarray:
        return checkpoint.tensor(f"{name}.weight").astype(np.float64)

    def norm(states: np.ndarray, name: str) -> np.ndarray:
        mean = (states**2).mean(-1, keepdims=True)
        return states / np.sqrt(mean + spec.rms_norm_eps) * weight(name)

    def rotate(head: np.ndarray) -> np.ndarray:
        angles = np.arange(len(head))[:, None] * inv_freq(spec)
        half = spec.head_dim // 2
        pairs = (head[:, :half] + 1j * head[:, half:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    states = weight("model.embed_tokens")[tokens]
    for layer in range(spec.num_layers):
        at = f"model.layers.{layer}"
        normed = norm(states, f"{at}.input_layernorm")
        query, key, value = (
            (normed @ weight(f"{at}.self_attn.{name}_proj").T).reshape(
                len(tokens), -1, spec.head_dim
            )
            for name in "qkv"
        )
        if spec.qk_norm:
            query = norm(query, f"{at}.self_attn.q_norm")
            key = norm(key, f"{at}.self_attn.k_norm")
        mixed = np.zeros_like(query)
        for head in range(spec.num_heads):
            group = head // (spec.num_heads // spec.num_kv_heads)
            scores = rotate(query[:, head]) @ rotate(key[:, group]).T / np.sqrt(spec.head_dim)
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            mixed[:, head] = share @ value[:, group]
        states = states + mixed.reshape(len(tokens), -1) @ weight(f"{at}.self_attn.o_proj").T
        normed = norm(states, f"{at}.post_attention_layernorm")
        gate = normed @ weight(f"{at}.mlp.gate_proj").T
        up = normed @ weight(f"{at}.mlp.up_proj").T
        states = states + (gate / (1 + np.exp(-gate)) * up) @ weight(f"{at}.mlp.down_proj").T
    head = "model.embed_tokens" if spec.tied_embeddings else "lm_head"
    return norm(states, "model.norm") @ weight(head).T


@pytest.mark.parametrize("name", MODELS)
def test_forward_equals_numpy(tmp_path: Path, name: str) -> None:
    """A rotary, grouping or norm mistake would train a draft that no engine reproduces."""
    import torch

    from export.distill.text import load_target

    make, options = MODELS[name]
    checkpoint = open_checkpoint(make(tmp_path / name, **options))
    tokens = np.random.default_rng(1).integers(0, checkpoint.spec.vocab_size, size=(2, 70))
    model = load_target(checkpoint)
    with torch.no_grad():
        found = model.logits(model.hidden(torch.from_numpy(tokens))).numpy()
    for row in range(2):
        np.testing.assert_allclose(found[row], numpy_logits(checkpoint, tokens[row]), atol=2e-4)


def test_right_padding_changes_nothing(tmp_path: Path) -> None:
    """Training batches pad on the right and pass no mask."""
    import torch

    from export.distill.text import load_target

    model = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    tokens = torch.arange(3, 23)[None]
    padded = torch.cat([tokens, torch.zeros((1, 9), dtype=torch.int64)], dim=1)
    with torch.no_grad():
        alone, among = model.hidden(tokens), model.hidden(padded)[:, :20]
    torch.testing.assert_close(alone, among)


def test_biased_projections_are_added(tmp_path: Path) -> None:
    """Qwen2: a draft trained without its biases is another model."""
    import torch

    from export.distill.text import load_target

    model = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    biased = Llama(replace(model.spec, qkv_bias=True), dict(model.weights))
    for layer in range(model.spec.num_layers):
        for name in "qkv":
            at = f"model.layers.{layer}.self_attn.{name}_proj"
            biased.weights[f"{at}.bias"] = torch.zeros(len(model.weights[f"{at}.weight"]))
    tokens = torch.arange(3, 13)[None]
    with torch.no_grad():
        torch.testing.assert_close(model.hidden(tokens), biased.hidden(tokens))
        biased.weights["model.layers.0.self_attn.v_proj.bias"].fill_(0.5)
        assert not torch.allclose(model.hidden(tokens), biased.hidden(tokens), atol=1e-2)


@pytest.mark.parametrize(
    "changes", [{"output_bias": True}, {"logit_softcap": 30.0}, {"embedding_scale": 2.0}]
)
def test_what_the_decoder_lacks_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """Trained without it, the draft would be of a model that does not exist."""
    spec = open_checkpoint(make_llama(tmp_path / "m")).spec
    check_supported(spec, "m")
    with pytest.raises(UnsupportedModelError, match=next(iter(changes))):
        check_supported(replace(spec, **changes), "m")
