"""Continue many prompts at once with a target: a fixed number of rows, refilled as they finish.

A pass takes every row a token further, and reads the prompts of new rows on the way. A row that is
refilled keeps the start that its old and its new text share: a question that is to be answered now,
the chat template's system prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from export.distill.generate.blocks import Blocks, Read, Step, Stretch, zeros
from export.distill.generate.decoder import Attend, Decoder
from export.distill.generate.noise import GumbelNoise
from export.distill.llama import Llama

if TYPE_CHECKING:
    from torch import Tensor

REFILL_SHARE = 32  # a batch's share of rows that may idle until their prompts are read together
READ_TOKENS = 2048  # of new prompts, with which rows are no longer refilled in the same pass
STRETCH = 512  # of one prompt a pass: scores, and what hides them, grow with its square
ALIKE = 32  # prompts of up to 2 n + this many new tokens are padded together, n the shortest's


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to continue, and what it is for (``tag``, the caller's own)."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float  # 0 = greedy
    tag: object = None


@dataclass(frozen=True, slots=True)
class Done:
    """A finished job: its answer, with the end id if it came, and the states of all its tokens."""

    job: Job
    answer: list[int]
    states: npt.NDArray[np.float16]  # [prompt + answer - 1, C], final norm; empty unless kept


class Generator:
    """``num_rows`` sequences of at most ``max_len`` tokens each, written side by side."""

    def __init__(
        self,
        target: Llama,
        *,
        num_rows: int,
        max_len: int,
        end_ids: Sequence[int],
        noise: GumbelNoise,
        keep_states: bool,
    ) -> None:
        import torch

        spec, device = target.spec, target.device
        self._decoder, self._noise, self._max_len = Decoder(target), noise, max_len
        dtype = target.weights["model.norm.weight"].dtype
        self._blocks = Blocks(spec, num_rows, max_len, dtype, device)
        width = spec.hidden_size if keep_states else 0
        self._states = zeros((num_rows, max_len, width), torch.float16, device)
        self._end_ids = np.array(end_ids, np.int64)

        self._jobs: list[Job | None] = [None] * num_rows
        self._tokens = np.zeros((num_rows, max_len + 1), np.int64)
        self._cached = np.zeros(num_rows, np.int64)  # tokens with keys and values; stay when done
        self._known = np.zeros(num_rows, np.int64)  # tokens of prompt and answer
        self._limits = np.zeros(num_rows, np.int64)  # known tokens that end an answer
        self._temperatures = np.zeros(num_rows, np.float32)

    def run(
        self, next_job: Callable[[], Job | None], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Done]:
        """Yield jobs as they finish, until none is left or ``stop()``.

        ``next_job`` is asked when some rows are free; None means none now, perhaps later, when one
        that is being written has finished. On ``stop()`` what has been written so far is yielded:
        a prefix of an answer is as good to learn from. Raises ValueError for a prompt without a
        token, or one that leaves no room for another.
        """
        import torch

        least = max(1, len(self._jobs) // REFILL_SHARE)
        with torch.inference_mode():
            while not stop():
                free = [row for row, job in enumerate(self._jobs) if job is None]
                if len(free) >= least or len(free) == len(self._jobs):
                    self._begin(free, next_job)
                busy = self._busy()
                if not len(busy):
                    return
                yield from [self._finish(row) for row in self._pass(busy)]
            left = [self._finish(row) for row in self._busy()]
            yield from (done for done in left if done.answer)

    def _busy(self) -> npt.NDArray[np.int64]:
        return np.array([row for row, job in enumerate(self._jobs) if job is not None], np.int64)

    def _begin(self, free: list[int], next_job: Callable[[], Job | None]) -> None:
        """Give jobs to ``free`` rows, each to the one that has most of its prompt already."""
        num_new = 0
        while free and num_new < READ_TOKENS and (job := next_job()) is not None:
            prompt = np.asarray(job.prompt, np.int64)
            if not 0 < len(prompt) <= self._max_len:
                raise ValueError(f"a prompt of {len(prompt)} tokens in rows of {self._max_len}")
            row = max(free, key=lambda each: self._num_shared(each, prompt))
            free.remove(row)
            self._cached[row] = self._num_shared(row, prompt)
            num_new += len(prompt) - int(self._cached[row])
            self._jobs[row], self._known[row] = job, len(prompt)
            self._tokens[row, : len(prompt)] = prompt
            self._limits[row] = min(len(prompt) + job.max_tokens, self._max_len + 1)
            self._temperatures[row] = job.temperature

    def _num_shared(self, row: int, prompt: npt.NDArray[np.int64]) -> int:
        """Tokens that the row has cached already. The last one is read: its state is needed."""
        most = min(int(self._cached[row]), len(prompt) - 1)
        differ = np.flatnonzero(self._tokens[row, :most] != prompt[:most])
        return int(differ[0]) if len(differ) else most

    def _pass(self, busy: npt.NDArray[np.int64]) -> list[int]:
        """A token more for every row of ``busy`` whose prompt is read to its end by that. Returns
        the rows that are complete."""
        for row in busy:
            self._blocks.fit(int(row), int(self._known[row]))
        groups = self._groups(busy)
        order = np.concatenate(groups)
        counts = self._num_new(order)
        ends = np.cumsum(counts)
        rows = np.repeat(order, counts)
        positions = np.arange(ends[-1]) - np.repeat(ends - counts - self._cached[order], counts)

        tensor = self._blocks.tensor
        hidden = self._decoder.hidden(
            tensor(self._tokens[rows, positions]),
            tensor(positions),
            self._attention(groups, rows, positions),
        )
        if self._states.shape[2]:
            self._states[tensor(rows), tensor(positions)] = hidden.half()
        self._cached[order] += counts
        whole = self._cached[order] == self._known[order]
        order, last = order[whole], ends[whole] - 1
        if not len(order):
            return []
        logits = self._decoder.logits(hidden[tensor(last)])
        drawn = self._noise.sample(logits, tensor(self._temperatures[order])).cpu().numpy()
        self._tokens[order, self._known[order]] = drawn
        self._known[order] += 1
        complete = np.isin(drawn, self._end_ids) | (self._known[order] >= self._limits[order])
        return [int(row) for row in np.sort(order[complete])]

    def _num_new(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tokens of each row in the next pass."""
        new: npt.NDArray[np.int64] = self._known[rows] - self._cached[rows]
        return new.clip(max=STRETCH)

    def _groups(self, busy: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """``busy`` in groups that attend together: first the rows with one new token, if there are
        any, then the others, by like number of new tokens."""
        counts = self._num_new(busy)
        groups = [busy[counts == 1]]
        others, counts = busy[counts > 1], counts[counts > 1]
        first = None
        for at in np.argsort(counts, kind="stable"):
            if first is None or counts[at] > 2 * first + ALIKE:
                first = counts[at]
                groups.append(others[:0])
            groups[-1] = np.append(groups[-1], others[at])
        return groups

    def _attention(
        self,
        groups: Sequence[npt.NDArray[np.int64]],
        rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> Attend:
        """How the tokens at ``positions`` [N] of ``rows`` [N] attend; ``groups`` is their order."""
        import torch

        singles, *others = groups
        places = self._blocks.places(rows, positions)
        parts: list[tuple[slice, Step | Read]] = []
        if len(singles):
            parts.append((slice(len(singles)), Step(self._blocks, singles, self._cached[singles])))
        start = len(singles)
        for group in others:
            counts = self._num_new(group)
            stretches = [
                Stretch(int(row), int(self._cached[row]), int(self._cached[row] + count))
                for row, count in zip(group, counts, strict=True)
            ]
            tokens = slice(start, start + int(counts.sum()))
            parts.append((tokens, Read(self._blocks, stretches)))
            start = tokens.stop

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self._blocks.store(layer, key, value, places)
            found = [part.attend(layer, query[tokens]) for tokens, part in parts]
            return found[0] if len(found) == 1 else torch.cat(found)

        return attend

    def _finish(self, row: int) -> Done:
        job = self._jobs[row]
        assert job is not None
        answer = self._tokens[row, len(job.prompt) : self._known[row]].tolist()
        states = self._states[row, : self._cached[row]].cpu().numpy().copy()
        self._jobs[row] = None
        return Done(job, answer, states)
