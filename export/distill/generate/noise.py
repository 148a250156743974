"""Sampling for a whole batch, with noise from a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 1 << 23
ROWS = 32  # at a time: float32 logits of more of them do not stay in a CPU's cache
STRIDE = 65_537  # between the places where two neighbouring rows read: prime, so patterns differ


class GumbelNoise:
    """Standard Gumbel noise from one table, read from a random place on.

    Drawing anew for 32 rows of 49k ids costs more than the forward pass of a small target. Good
    enough for training text; not for sampling whose law is promised.
    """

    def __init__(self, vocab_size: int, num_rows: int, seed: int, device: str = "cpu") -> None:
        import torch

        self._vocab_size = vocab_size
        self._span = num_rows * STRIDE + vocab_size
        self._rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed % (1 << 63))
        uniform = torch.rand(max(SIZE, 2 * self._span), generator=generator)
        self._table = (-(-uniform.clamp(1e-10, 1.0 - 1e-7).log()).log()).to(device)

    def sample(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        """Ids [B] drawn from softmax(logits[b] / temperatures[b]), the largest logit's at 0.

        argmax(logits + T g) is argmax(logits / T + g), and defined at T = 0.
        """
        import torch

        first = int(self._rng.integers(len(self._table) - self._span))
        noise = self._table.as_strided((len(logits), self._vocab_size), (STRIDE, 1), first)
        drawn = []
        for at in range(0, len(logits), ROWS):
            part = slice(at, at + ROWS)
            wide = logits[part].to(torch.float32, copy=True)
            noisy = wide.addcmul_(noise[part], temperatures[part, None])
            drawn.append(noisy.argmax(-1))
        return torch.cat(drawn)
