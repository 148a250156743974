"""Train a draft on what the target wrote: hard labels, answers only, one core."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from export.checkpoint.weights import EMBEDDING, HEAD
from export.distill.corpus import Batch, Sample, batches
from export.distill.llama import Llama
from export.distill.vocabulary import to_draft

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 4  # 16 learned half as fast a second on one core
PEAK_RATE = 1e-3
WARM_UP = 0.02  # share of the run


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is, for display."""

    share: float  # of the run, 0..1
    num_steps: int
    num_tokens: int  # tokens passed through the draft, padding excluded
    loss: float  # running mean over recent steps, nats a token


def source_layers(num_layers: int, num_target_layers: int) -> list[int]:
    """Target layers that initialise a draft: half from the start, half from the end."""
    from_start = (num_layers + 1) // 2
    return [
        *range(from_start),
        *range(num_target_layers - (num_layers - from_start), num_target_layers),
    ]


def initial_draft(target: Llama, num_layers: int, ids: npt.NDArray[np.int64]) -> Llama:
    """A draft made of target layers, the target's final norm and its head rows ``ids`` [V'].

    The embedding is the target's own tensor, frozen; everything else is a trainable copy.
    """
    import torch

    weights = {"model.norm.weight": target.weights["model.norm.weight"]}
    for layer, source in enumerate(source_layers(num_layers, target.spec.num_layers)):
        prefix = f"model.layers.{source}."
        for name, tensor in target.weights.items():
            if name.startswith(prefix):
                weights[f"model.layers.{layer}.{name.removeprefix(prefix)}"] = tensor
    weights[HEAD] = target.head[torch.from_numpy(ids)]
    trainable = {name: tensor.float().clone().requires_grad_() for name, tensor in weights.items()}
    spec = replace(
        target.spec,
        num_layers=num_layers,
        tied_embeddings=False,
        draft_vocab_size=len(ids),
        embeddings_from_target=True,
    )
    return Llama(spec, {EMBEDDING: target.weights[EMBEDDING].float(), **trainable})


def draft_labels(
    batch: Batch, ids: npt.NDArray[np.int64], vocab_size: int
) -> npt.NDArray[np.int64]:
    """Labels [B, T] as draft ids; -1 outside the answers and the draft's vocabulary."""
    return np.where(batch.labels >= 0, to_draft(ids, vocab_size)[batch.labels], -1)


def loss_of(draft: Llama, tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over the positions whose label [B, T] is a draft id (not -1)."""
    from torch.nn import functional

    hidden = draft.hidden(tokens)
    counted = labels >= 0
    logits = draft.logits(hidden[counted])  # the head only where it is needed
    return functional.cross_entropy(logits.float(), labels[counted])


def train(
    draft: Llama,
    samples: Sequence[Sample],
    ids: npt.NDArray[np.int64],
    *,
    seconds: float,
    seed: int,
    max_steps: int | None = None,
    report: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Train ``draft`` in place for ``seconds`` (or ``max_steps``) and return the last progress."""
    import torch

    trainable = [tensor for tensor in draft.weights.values() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    rng = np.random.default_rng(seed)
    progress = Progress(0.0, 0, 0, math.nan)
    start = clock()
    while True:
        for batch in batches(samples, BATCH, rng):
            share = (clock() - start) / seconds
            if max_steps is not None:
                share = max(share, progress.num_steps / max_steps)
            if share >= 1.0:
                return progress
            labels = draft_labels(batch, ids, draft.spec.vocab_size)
            if not (labels >= 0).any():
                continue
            for group in optimizer.param_groups:
                group["lr"] = PEAK_RATE * schedule(share)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(draft, torch.from_numpy(batch.tokens), torch.from_numpy(labels))
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(trainable, 1.0)
            optimizer.step()
            value = loss.item()
            mean = value if progress.num_steps == 0 else 0.9 * progress.loss + 0.1 * value
            num_tokens = progress.num_tokens + batch.num_tokens
            progress = Progress(share, progress.num_steps + 1, num_tokens, mean)
            report(progress)


def schedule(share: float) -> float:
    """Learning rate over its peak after ``share`` of the run: linear warm-up, then cosine."""
    if share < WARM_UP:
        return max(share, 1e-3) / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * (share - WARM_UP) / (1.0 - WARM_UP)))
