"""The target writes its own training text: a question from a short opening, then the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from export.distill.chat import Frame
from export.distill.corpus import Sample
from export.distill.llama import Llama

if TYPE_CHECKING:
    from torch import Tensor

OPENINGS = (
    "What", "What is", "How", "How do", "How can I", "Why", "Why do", "When", "Where", "Who",
    "Which", "Is", "Are", "Can you", "Could you", "Write", "Write a short", "Explain", "Describe",
    "Give me", "List", "Tell me", "Summarize", "Compare", "Translate", "Rewrite", "Suggest",
    "Create", "I", "I want to", "My", "In", "The", "If", "A", "Solve", "Name", "Please", "Let's",
    "Help me",
)  # fmt: skip
BATCH = 32
QUESTION_TOKENS = 48
QUESTION_TEMPERATURE = 1.0
ANSWER_TOKENS = 192
ANSWER_TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # half greedy: what a draft is measured on
NOISE_SIZE = 1 << 22


class GumbelNoise:
    """Standard Gumbel noise from one table, read at random places.

    Drawing anew for 32 rows of 49k ids costs more than the forward pass of a small target.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        import torch

        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(max(NOISE_SIZE, 4 * vocab_size), generator=generator)
        self._table = -(-uniform.clamp(1e-10, 1.0 - 1e-7).log()).log()

    def sample(
        self, logits: Tensor, temperatures: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.int64]:
        """Ids [B] drawn from softmax(logits[b] / temperatures[b]), or the largest logit at 0."""
        chosen: npt.NDArray[np.int64] = logits.argmax(-1).numpy()
        for row in np.flatnonzero(temperatures):
            first = int(self._rng.integers(len(self._table) - self._vocab_size))
            noise = self._table[first : first + self._vocab_size]
            chosen[row] = int((logits[row] / float(temperatures[row]) + noise).argmax())
        return chosen


def complete(
    target: Llama,
    prompts: Sequence[Sequence[int]],
    temperatures: npt.NDArray[np.float32],
    max_tokens: int,
    end_ids: Sequence[int],
    noise: GumbelNoise,
    expired: Callable[[], bool] = lambda: False,
) -> list[list[int]]:
    """Continue every prompt by up to ``max_tokens`` ids, its end id included if it came.

    Prompts stand at the right end of one block, so that all rows write the same cache row.
    Stops early, with what there is, once ``expired()``.
    """
    import torch

    num_rows, width = len(prompts), max(len(prompt) for prompt in prompts)
    tokens = torch.zeros((num_rows, width), dtype=torch.int64)
    visible = torch.ones((num_rows, width + max_tokens), dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        visible[row, : width - len(prompt)] = False
    positions = (visible[:, :width].cumsum(1) - 1).clamp(min=0)  # [B, width]
    causal = torch.ones((width, width), dtype=torch.bool).tril()
    mask = causal & visible[:, None, :width]  # [B, width, width]

    written: list[list[int]] = [[] for _ in prompts]
    running = np.ones(num_rows, bool)
    cache = target.new_cache(num_rows, width + max_tokens)
    with torch.inference_mode():
        hidden = target.hidden(tokens, positions=positions, mask=mask[:, None], cache=cache)
        for step in range(max_tokens):
            chosen = noise.sample(target.logits(hidden[:, -1]).float(), temperatures)
            for index in np.flatnonzero(running):
                written[index].append(int(chosen[index]))
            running &= ~np.isin(chosen, end_ids)
            if step + 1 == max_tokens or not running.any() or expired():
                break
            positions = positions[:, -1:] + 1
            hidden = target.hidden(
                torch.from_numpy(chosen)[:, None],
                positions=positions,
                mask=visible[:, None, None, : cache.length + 1],
                cache=cache,
            )
    return written


def write_samples(
    target: Llama,
    frame: Frame,
    seed: int,
    expired: Callable[[], bool],
    report: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """Batches of questions and answers until ``expired()``; ``report`` gets the answer tokens.

    Questions are sampled, answers use ANSWER_TEMPERATURES in turn. Answers cut off by the clock
    are kept: a prefix of an answer is as good to train on.
    """
    rng = np.random.default_rng(seed)
    noise = GumbelNoise(target.spec.vocab_size, seed)
    samples: list[Sample] = []
    num_tokens = 0
    while not expired():
        openings = [OPENINGS[i] for i in rng.integers(len(OPENINGS), size=BATCH)]
        started = complete(
            target,
            [frame.encode(frame.before + opening) for opening in openings],
            np.full(BATCH, QUESTION_TEMPERATURE, np.float32),
            QUESTION_TOKENS,
            frame.end_ids,
            noise,
            expired,
        )
        # Encoded as one text, as a user's question will be, not as the pieces it was written in.
        prompts = [
            frame.encode(frame.before + opening + frame.decode(ids) + frame.after)
            for opening, ids in zip(openings, started, strict=True)
        ]
        temperatures = np.resize(np.array(ANSWER_TEMPERATURES, np.float32), BATCH)
        answers = complete(
            target, prompts, temperatures, ANSWER_TOKENS, frame.end_ids, noise, expired
        )
        for prompt, answer, temperature in zip(prompts, answers, temperatures, strict=True):
            ids = np.array([*prompt, *answer], np.int64)
            samples.append(Sample(ids, len(prompt), float(temperature)))
            num_tokens += len(answer)
        report(num_tokens)
    return samples
