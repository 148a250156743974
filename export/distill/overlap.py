"""Keeps evaluation prompts out of the training text: no shared run of NUM_TOKENS tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from export.distill.corpus import Sample

NUM_TOKENS = 13
# A window's hash is a dot product with these, modulo 2^64.
_FACTORS = np.random.default_rng(13).integers(0, 1 << 63, NUM_TOKENS, np.uint64) * 2 + 1


def grams(ids: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Hashes of every run of NUM_TOKENS ids, [max(0, tokens - NUM_TOKENS + 1)]."""
    array = np.asarray(ids, np.uint64)
    if len(array) < NUM_TOKENS:
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(array, NUM_TOKENS)
    hashes: npt.NDArray[np.uint64] = (windows * _FACTORS).sum(axis=1, dtype=np.uint64)
    return hashes


def without(
    samples: Sequence[Sample], prompts: Iterable[Sequence[int]]
) -> tuple[list[Sample], int]:
    """The samples that share no run with any of ``prompts``, and how many do.

    Answers are looked at too: a prompt that the target quotes is as good as known.
    """
    found = [grams(prompt) for prompt in prompts]
    if not found:
        return list(samples), 0
    forbidden = np.unique(np.concatenate(found))
    kept = [s for s in samples if not np.isin(grams(s.ids), forbidden).any()]
    return kept, len(samples) - len(kept)
