"""Random rows, parameters and drafted blocks, full of what breaks samplers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plugins.law.reference import (
    Edits,
    LawParams,
    Sampling,
    adjusted,
    is_damaged,
    law,
    ranking,
)
from plugins.noise.reference import gumbel
from plugins.verify.sampled import choose


def float32(value: float) -> float:
    """The value as the kernels' arrays hold it."""
    return float(np.float32(value))


def random_params(rng: np.random.Generator) -> LawParams:
    """Half of the temperatures usual, half at the ends; each cut absent about as often as not."""
    return LawParams(
        temperature=float32(rng.choice([0, 1e-9, 0.01, 0.3, 0.7, 0.7, 1, 1, 2, 1e5])),
        top_k=int(rng.choice([0, 0, 0, 1, 2, 5, 50, 1000])),
        top_p=float32(rng.choice([1, 1, 1, 0.99, 0.9, 0.5, 0.3, 1e-6])),
        min_p=float32(rng.choice([0, 0, 0, 0.05, 0.5, 1])),
    )


def with_penalties(rng: np.random.Generator, params: LawParams) -> LawParams:
    return LawParams(
        *(params.temperature, params.top_k, params.top_p, params.min_p),
        repetition=float32(rng.choice([1, 1, 1.3, 0.7])),
        presence=float32(rng.choice([0, 0, 0.5, -1])),
        frequency=float32(rng.choice([0, 0, 0.25])),
    )


def random_edits(rng: np.random.Generator, vocab_size: int) -> Edits:
    num = int(rng.integers(0, min(vocab_size, 30) + 1))
    return Edits(
        ids=np.sort(rng.choice(vocab_size, num, replace=False)).astype(np.int32),
        bias=rng.choice([0, 0, 1.5, -2, -np.inf], num).astype(np.float32),
        generated=rng.integers(0, 3, num).astype(np.int32),
        in_prompt=rng.random(num) < 0.5,
    )


def random_sampling(
    rng: np.random.Generator, vocab_size: int, has_edits: bool | None = None
) -> Sampling:
    params = random_params(rng)
    edits = Edits()
    if rng.random() < 0.5 if has_edits is None else has_edits:
        params, edits = with_penalties(rng, params), random_edits(rng, vocab_size)
    seed = int(rng.integers(0, 2**64, dtype=np.uint64))
    first = int(rng.integers(0, 2**40))
    return Sampling(params, seed, first, edits, **random_bans(rng, vocab_size, first))


def random_bans(rng: np.random.Generator, vocab_size: int, first_position: int) -> dict[str, Any]:
    """Mostly none; else a few ids, some perhaps unknown, before a place of the block."""
    if rng.random() < 0.6:
        return {}
    num = int(rng.integers(0, min(vocab_size, 5) + 1))
    ids = rng.choice(vocab_size + 2, num, replace=False).tolist()
    before = max(0, first_position + int(rng.integers(-1, 5)))
    return {"banned_ids": tuple(ids), "banned_before": before}


def random_logits(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal, tied, masked, one-hot or signed-zero logits in float32, float16 or bfloat16 bits."""
    logits = rng.standard_normal(shape) * rng.choice([0.1, 1, 3, 10])
    kind = rng.integers(0, 6)
    if kind == 0:
        logits = np.round(logits)
    elif kind == 1:
        logits[rng.random(shape) < 0.4] = -np.inf
    elif kind == 2:
        logits = np.where(rng.random(shape) < 0.5, 0.0, -0.0) + (rng.random(shape) < 0.1)
    elif kind == 3:
        logits[...] = -np.inf
        np.put_along_axis(logits, rng.integers(0, shape[-1], (*shape[:-1], 1)), 2.5, axis=-1)
    with np.errstate(over="ignore"):
        return stored(logits.astype(np.float32), dtype)


def stored(logits: np.ndarray, dtype: str) -> np.ndarray:
    """float32 rounded to the type of an engine's logits; bfloat16 as its bits, cut off."""
    if dtype == "uint16":
        return (logits.view(np.uint32) >> 16).astype(np.uint16)
    return logits.astype(dtype)


def as_float32(logits: np.ndarray) -> np.ndarray:
    """What a kernel reads from stored logits."""
    if logits.dtype == np.uint16:
        return (logits.astype(np.uint32) << 16).view(np.float32)
    return logits.astype(np.float32)


def rank_of(row: np.ndarray) -> np.ndarray:
    """uint64 [V]: the ranks of plugins/law/cut.cuh, smaller for what ranks earlier."""
    bits = (row + np.float32(0)).view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)
    return ((np.uint64(0xFFFFFFFF) - ordered) << np.uint64(20)) | np.arange(
        row.size, dtype=np.uint64
    )


@dataclass
class DraftedBlock:
    """Logits [B, R, V'] with drafts and draft laws that a draft could have made of them."""

    logits: np.ndarray
    samplings: list[Sampling]
    drafts: np.ndarray
    num_draft: np.ndarray
    vocab_size: int
    q_ids: np.ndarray
    q_probs: np.ndarray


def drafted_block(
    rng: np.random.Generator,
    rule: str,
    *,
    vocab_size: int,
    dtype: str = "float32",
    has_edits: bool | None = None,
) -> DraftedBlock:
    """Some drafts equal the target's choice, some are likely, a few are nonsense."""
    batch, rows, support = int(rng.integers(1, 5)), int(rng.integers(1, 6)), int(rng.integers(1, 9))
    padding = int(rng.integers(0, 10))
    logits = random_logits(rng, (batch, rows, vocab_size + padding), dtype)
    if dtype != "uint16" and rng.random() < 0.1:
        logits[rng.integers(batch), rng.integers(rows), rng.integers(vocab_size)] = rng.choice(
            [np.nan, np.inf]
        )
    samplings = [random_sampling(rng, vocab_size, has_edits) for _ in range(batch)]
    block = DraftedBlock(
        logits,
        samplings,
        drafts=np.zeros((batch, rows - 1), np.int64),
        num_draft=rng.integers(0, rows, batch),
        vocab_size=vocab_size,
        q_ids=np.full((batch, rows - 1, support), -1, np.int32),
        q_probs=np.zeros((batch, rows - 1, support)),
    )
    for sequence, place in np.ndindex(batch, rows - 1):
        _draft(rng, rule, block, sequence, place)
    return block


def _draft(
    rng: np.random.Generator, rule: str, block: DraftedBlock, sequence: int, place: int
) -> None:
    sampling, drafts = block.samplings[sequence], block.drafts[sequence]
    logits = as_float32(block.logits[sequence, place])
    row = adjusted(
        logits,
        sampling.params,
        sampling.edits,
        drafts[:place].tolist(),
        block.vocab_size,
        sampling.banned_at(sampling.first_position + place),
    )
    support = min(block.q_ids.shape[-1], block.vocab_size)
    if is_damaged(row):
        ids = rng.choice(block.vocab_size, support, replace=False)
        probs = np.full(ids.size, 1 / ids.size)
    else:
        likely = ranking(row)[: int(rng.integers(1, support + 1))]
        others = rng.choice(block.vocab_size, support)
        ids = np.unique(np.concatenate([likely, others]))[-support:]
        probs = law(row, sampling.params)[ids] * rng.choice([1, 1, 0.5]) + rng.random() * 0.1
        probs = probs / probs.sum()
    rng.shuffle(order := np.arange(ids.size))
    block.q_ids[sequence, place, : ids.size] = ids[order]
    block.q_probs[sequence, place, : ids.size] = probs[order]
    drafts[place] = rng.choice(ids, p=probs)
    if rule == "coupled" and not is_damaged(row) and rng.random() < 0.8:
        noise = gumbel(sampling.seed, sampling.first_position + place, row.size)
        drafts[place] = choose(row, sampling.params, noise)
    if rng.random() < 0.03:
        drafts[place] = rng.integers(-1, block.logits.shape[-1] + 1)
