"""Continue many prompts at once with a target: a fixed number of rows, refilled as they finish.

Every row has its own place in one static cache. A step is one pass of one token for all rows and
holds no Python loop over rows or tokens; prompts of new rows are read together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from export.distill.llama import Llama
from export.distill.noise import GumbelNoise

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EXTENT_STEP = 32  # attended cache rows are rounded up to this
REFILL_SHARE = 16  # a batch's share of rows that may idle until their prompts are read together


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


@dataclass(slots=True)
class _Rows:
    """Where the rows stand; tensors [B] on the model's device, ``jobs`` on the host."""

    lengths: Tensor  # cached tokens
    starts: Tensor  # length of the prompt
    limits: Tensor  # cached tokens at which the answer is long enough
    temperatures: Tensor
    last: Tensor  # newest token, not cached yet
    busy: Tensor
    jobs: list[Job | None]


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
        self._target, self._noise, self._max_len = target, noise, max_len
        dtype = target.weights["model.norm.weight"].dtype
        shape = (spec.num_layers, num_rows, spec.num_kv_heads, max_len, spec.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._tokens = torch.zeros((num_rows, max_len + 1), dtype=torch.int64, device=device)
        self._ends = torch.tensor(list(end_ids), dtype=torch.int64, device=device)
        self._indices = torch.arange(num_rows, device=device)
        self._columns = torch.arange(max_len, device=device)
        width = spec.hidden_size if keep_states else 0
        self._states = torch.zeros((num_rows, max_len, width), dtype=torch.float16, device=device)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_rows, dtype=dtype, device=device)

        self._rows = _Rows(
            lengths=zeros(torch.int64),
            starts=zeros(torch.int64),
            limits=zeros(torch.int64),
            temperatures=zeros(torch.float32),
            last=zeros(torch.int64),
            busy=zeros(torch.bool),
            jobs=[None] * num_rows,
        )

    def run(
        self, next_job: Callable[[], Job | None], stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Done]:
        """Yield jobs as they finish, until none is left or ``stop()``.

        ``next_job`` is asked whenever a row is free; None means none now, perhaps later, when one
        that is being written has finished. On ``stop()`` what has been written so far is yielded:
        a prefix of an answer is as good to learn from. Raises ValueError for a prompt that leaves
        no room for a token.
        """
        import torch

        rows = self._rows
        free = deque(range(len(rows.jobs)))
        least = max(1, len(rows.jobs) // REFILL_SHARE)
        with torch.inference_mode():
            while True:
                num_busy = len(rows.jobs) - len(free)
                if (len(free) >= least or num_busy == 0) and not stop():
                    started = []
                    while free and (job := next_job()) is not None:
                        started.append(free.popleft())
                        rows.jobs[started[-1]] = job
                    if started:
                        self._read_prompts(started)
                        num_busy += len(started)
                if num_busy == 0:
                    return
                stopped = stop()
                ended = self._ended() | (rows.busy if stopped else False)
                for index in torch.nonzero(ended).flatten().tolist():
                    yield self._finish(index)
                    free.append(index)
                if stopped:
                    return
                if len(free) < len(rows.jobs):
                    self._step()

    def _read_prompts(self, started: list[int]) -> None:
        """Cache the prompts of new rows and draw their first tokens."""
        import torch

        rows, jobs = self._rows, [self._rows.jobs[index] for index in started]
        prompts = [np.asarray(job.prompt, np.int64) for job in jobs if job is not None]
        lengths = np.array([len(prompt) for prompt in prompts])
        limits = np.array([len(j.prompt) + j.max_tokens - 1 for j in jobs if j is not None])
        if lengths.max() > self._max_len:
            raise ValueError(f"a prompt of {lengths.max()} tokens in rows of {self._max_len}")
        block = np.zeros((len(started), int(lengths.max())), np.int64)
        for row, prompt in enumerate(prompts):
            block[row, : len(prompt)] = prompt
        device = self._target.device
        index = torch.tensor(started, device=device)
        tokens = torch.from_numpy(block).to(device)
        width = tokens.shape[1]

        def store(layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            self._keys[layer][index, :, :width] = key
            self._values[layer][index, :, :width] = value
            return key, value

        hidden = self._target.hidden(tokens, store=store)
        self._tokens[index, :width] = tokens
        if self._states.shape[2]:
            self._states[index, :width] = hidden.half()
        rows.lengths[index] = torch.from_numpy(lengths).to(device)
        rows.starts[index] = rows.lengths[index]
        rows.limits[index] = torch.from_numpy(np.minimum(limits, self._max_len)).to(device)
        heats = [job.temperature for job in jobs if job is not None]
        rows.temperatures[index] = torch.tensor(heats, device=device)
        rows.busy[index] = True
        last = hidden[torch.arange(len(started), device=device), rows.lengths[index] - 1]
        self._draw(index, last)

    def _step(self) -> None:
        """One more token for every busy row; free rows rewrite their first place for nothing."""
        import torch

        rows = self._rows
        at = torch.where(rows.busy, rows.lengths, 0)
        extent = min(-(-(int(at.max()) + 1) // EXTENT_STEP) * EXTENT_STEP, self._max_len)
        hides = torch.zeros((len(at), 1, 1, extent), dtype=self._keys.dtype, device=at.device)
        hides.masked_fill_((self._columns[:extent] > at[:, None])[:, None, None], -torch.inf)

        def store(layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            self._keys[layer][self._indices, :, at] = key[:, :, 0]
            self._values[layer][self._indices, :, at] = value[:, :, 0]
            return self._keys[layer][:, :, :extent], self._values[layer][:, :, :extent]

        hidden = self._target.hidden(
            rows.last[:, None], positions=at[:, None], mask=hides, store=store
        )[:, 0]
        if self._states.shape[2]:
            self._states[self._indices, at] = hidden.half()
        rows.lengths = torch.where(rows.busy, rows.lengths + 1, 0)
        self._draw(self._indices, hidden)

    def _draw(self, index: Tensor, hidden: Tensor) -> None:
        """The next token of rows ``index`` from their states [n, C]."""
        rows = self._rows
        logits = self._target.logits(hidden).float()
        rows.last[index] = self._noise.sample(logits, rows.temperatures[index])
        self._tokens[index, rows.lengths[index]] = rows.last[index]

    def _ended(self) -> Tensor:
        import torch

        rows = self._rows
        said_end = torch.isin(rows.last, self._ends)
        return rows.busy & (said_end | (rows.lengths >= rows.limits))

    def _finish(self, index: int) -> Done:
        rows = self._rows
        job = rows.jobs[index]
        assert job is not None
        length = int(rows.lengths[index])
        answer = self._tokens[index, int(rows.starts[index]) : length + 1].tolist()
        states = self._states[index, :length].cpu().numpy().copy()
        rows.jobs[index] = None
        rows.busy[index] = False
        rows.lengths[index] = 0
        return Done(job, answer, states)
