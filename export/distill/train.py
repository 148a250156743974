"""Train a draft on what its target wrote: one step, and the loop that can stop and go on.

Soft labels are the target's law over the draft's ids, softmax(states head[ids]^T), formed here from
its stored final-norm states: a row of the vocabulary a token would be a hundred times their size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from export.distill.corpus import Batch, Sample, collate, order
from export.distill.llama import Llama
from export.distill.stop import Stop
from export.distill.vocabulary import to_draft

if TYPE_CHECKING:
    from torch import Tensor, dtype
    from torch.optim import AdamW

BATCH = 4  # 16 learned half as fast a second on one core
PEAK_RATE = 1e-3
FURTHER_RATE = 5e-4  # the peak for a draft that goes on: what it has learnt is to be kept
WARM_UP = 0.02  # share of the run


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is."""

    share: float = 0.0  # of the run, 0..1
    num_steps: int = 0
    num_tokens: int = 0  # tokens passed through the draft, padding excluded
    loss: float = math.nan  # running mean over recent steps, nats a token
    seconds: float = 0.0  # spent on steps, earlier runs included
    num_passes: int = 0  # whole passes over the data
    batch_in_pass: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """When training ends: the first of these that is reached. None = no such limit."""

    seconds: float | None = None
    passes: float | None = None

    def share(self, seconds: float, num_tokens: int, tokens_a_pass: int) -> float:
        """How much of the budget is used up, 0..1 and beyond."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append(seconds / self.seconds)
        if self.passes is not None:
            shares.append(num_tokens / (self.passes * tokens_a_pass))
        return max(shares)


class Labels:
    """What each position of a batch should predict; soft with the target's ``head`` [V', C]."""

    def __init__(self, ids: npt.NDArray[np.int64], vocab_size: int, head: Tensor | None) -> None:
        self._table = to_draft(ids, vocab_size)
        self._head = head

    def loss(self, draft: Llama, batch: Batch) -> Tensor | None:
        """Mean cross entropy, nats; None where no position has a label.

        Hard: the answers' tokens that the draft can say. Soft: the target's law at every position
        of the answers, and at as many of the prompts.
        """
        import torch
        from torch.nn import functional

        if self._head is None:
            hard = np.where(batch.labels >= 0, self._table[batch.labels], -1)
            where = np.flatnonzero(hard >= 0)
            goal = torch.from_numpy(hard.reshape(-1)[where]).to(draft.device)
        else:
            chosen = worth_learning(batch)
            where = batch.known[chosen]
            states = torch.from_numpy(batch.states[chosen]).to(draft.device, self._head.dtype)
            goal = functional.linear(states, self._head).float().softmax(-1)
        if len(where) == 0:
            return None
        hidden = draft.hidden(torch.from_numpy(batch.tokens).to(draft.device)).flatten(0, 1)
        # The head is the dearest part, so only where it is needed.
        logits = draft.logits(hidden[torch.from_numpy(where).to(draft.device)])
        return functional.cross_entropy(logits.float(), goal)


def worth_learning(batch: Batch) -> npt.NDArray[np.int64]:
    """Indices into ``batch.known``: all places of the answers and, spread evenly, at most as many
    of the prompts. A page of prompt before a line of answer would else be all that is learned, and
    the draft is never asked for it."""
    is_answer = batch.labels.reshape(-1)[batch.known] >= 0
    answers, prompts = np.flatnonzero(is_answer), np.flatnonzero(~is_answer)
    if len(answers) == 0:
        return answers
    step = max(1, -(-len(prompts) // len(answers)))
    return np.sort(np.concatenate([answers, prompts[::step]]))


class Trainer:
    """A draft, its optimiser and its place in the data: all that a checkpoint holds."""

    def __init__(
        self,
        draft: Llama,
        samples: Sequence[Sample],
        labels: Labels,
        *,
        seed: int,
        budget: Budget,
        dtype: dtype,
        peak_rate: float = PEAK_RATE,
    ) -> None:
        import torch

        self.draft, self._peak_rate = draft, peak_rate
        self.progress = Progress()
        self.samples, self._labels = samples, labels
        self._seed, self._budget, self._dtype = seed, budget, dtype
        self.num_sequences = len(samples)
        self.tokens_a_pass = sum(len(sample) for sample in samples)
        self.trainable = [tensor for tensor in draft.weights.values() if tensor.requires_grad]
        self.optimizer: AdamW = torch.optim.AdamW(
            self.trainable, lr=peak_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )

    def run(
        self,
        stop: Stop,
        after_step: Callable[[Progress], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Train until the budget is used up, ``stop`` is asked, or ``after_step`` returns True.

        The order of the batches depends on the seed alone, so a run that is gone on with visits
        what it would have visited. Time spent in ``after_step`` is not charged.
        """
        while True:
            parts = self._parts()
            while self.progress.batch_in_pass < len(parts):
                begun = clock()
                share = self._budget.share(
                    self.progress.seconds, self.progress.num_tokens, self.tokens_a_pass
                )
                if stop or share >= 1.0:
                    return
                part = parts[self.progress.batch_in_pass]
                self._step(collate([self.samples[index] for index in part]), share)
                seconds = self.progress.seconds + clock() - begun
                self.progress = replace(self.progress, seconds=seconds)
                if after_step(self.progress):
                    return
            done = self.progress.num_passes + 1
            self.progress = replace(self.progress, num_passes=done, batch_in_pass=0)

    def _parts(self) -> list[list[int]]:
        rng = np.random.default_rng([self._seed, self.progress.num_passes])
        return order([len(sample) for sample in self.samples], BATCH, rng)

    def _step(self, batch: Batch, share: float) -> None:
        import torch

        before = self.progress
        value = before.loss
        is_low = self._dtype != torch.float32
        with torch.autocast(self.draft.device.type, dtype=torch.bfloat16, enabled=is_low):
            loss = self._labels.loss(self.draft, batch)
        if loss is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._peak_rate * schedule(share)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(self.trainable, 1.0)
            self.optimizer.step()
            found = loss.item()
            value = found if math.isnan(value) else 0.98 * value + 0.02 * found
        self.progress = replace(
            before,
            share=share,
            num_steps=before.num_steps + 1,
            num_tokens=before.num_tokens + batch.num_tokens,
            loss=value,
            batch_in_pass=before.batch_in_pass + 1,
        )


def schedule(share: float) -> float:
    """Learning rate over its peak after ``share`` of the run: linear warm-up, then cosine."""
    if share < WARM_UP:
        return max(share, 1e-3) / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * (share - WARM_UP) / (1.0 - WARM_UP)))
