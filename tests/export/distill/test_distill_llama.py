"""The torch Llama that trains and writes must be the model that the checkpoint describes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.spec import inv_freq
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

    from export.distill.pipeline import load_target

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

    from export.distill.pipeline import load_target

    model = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    tokens = torch.arange(3, 23)[None]
    padded = torch.cat([tokens, torch.zeros((1, 9), dtype=torch.int64)], dim=1)
    with torch.no_grad():
        alone, among = model.hidden(tokens), model.hidden(padded)[:, :20]
    torch.testing.assert_close(alone, among)


def test_ragged_batch_writes_what_each_prompt_alone_would(tmp_path: Path) -> None:
    """Left padding, positions and cache rows of a batch: a slip lets one prompt change another."""
    import torch

    from export.distill.pipeline import load_target
    from export.distill.selfplay import GumbelNoise, complete

    model = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    prompts = [[5, 6, 7], [9], [30, 31, 32, 33, 34, 35, 36]]
    noise = GumbelNoise(model.spec.vocab_size, seed=0)
    greedy = np.zeros(3, np.float32)
    written = complete(model, prompts, greedy, 12, end_ids=(), noise=noise)
    for prompt, answer in zip(prompts, written, strict=True):
        sequence = list(prompt)
        for _ in range(12):
            with torch.no_grad():
                logits = model.logits(model.hidden(torch.tensor([sequence])))
            sequence.append(int(logits[0, -1].argmax()))
        assert answer == sequence[len(prompt) :]


def test_writing_stops_at_the_end_id_and_keeps_it(tmp_path: Path) -> None:
    """A draft that never saw the end id would draft past every answer."""
    from export.distill.pipeline import load_target
    from export.distill.selfplay import GumbelNoise, complete

    model = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    noise = GumbelNoise(model.spec.vocab_size, seed=0)
    prompts = [[5, 6, 7], [9]]
    free = complete(model, prompts, np.zeros(2, np.float32), 8, end_ids=(), noise=noise)
    end = free[0][3]
    stopped = complete(model, prompts, np.zeros(2, np.float32), 8, end_ids=(end,), noise=noise)
    assert stopped[0] == free[0][: free[0].index(end) + 1]


def test_sampling_follows_the_softmax() -> None:
    """Noise of the wrong law (or its sign) would write text that the target does not write."""
    import torch

    from export.distill.selfplay import GumbelNoise

    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).repeat(4000, 1)
    temperatures = np.full(4000, 0.8, np.float32)
    drawn = GumbelNoise(4, seed=3).sample(logits, temperatures)
    law = np.exp(np.array([2.0, 1.0, 0.0, -1.0]) / 0.8)
    law /= law.sum()
    expected = 4000 * law
    statistic = float(((np.bincount(drawn, minlength=4) - expected) ** 2 / expected).sum())
    assert statistic < 21.1  # chi-square, 3 degrees of freedom: false alarm 1e-4, seed fixed
