"""Keeps text that a draft is measured on out of its training text: no long run of shared tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from export.distill.corpus import Sample

NUM_TOKENS = 13
PASSAGE_TOKENS = 24  # 13 would be stock phrases of the target: 6 % of its text, with 24 it is 1.6 %
# A window's hash is a dot product with the first of these, modulo 2^64.
_FACTORS = np.random.default_rng(13).integers(0, 1 << 63, PASSAGE_TOKENS, np.uint64) * 2 + 1


def grams(
    ids: Sequence[int] | npt.NDArray[np.int64], length: int = NUM_TOKENS
) -> npt.NDArray[np.uint64]:
    """Hashes of every run of ``length`` ids, [max(0, tokens - length + 1)]."""
    array = np.asarray(ids, np.uint64)
    if len(array) < length:
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(array, length)
    hashes: npt.NDArray[np.uint64] = (windows * _FACTORS[:length]).sum(axis=1, dtype=np.uint64)
    return hashes


def without(
    samples: Sequence[Sample],
    texts: Iterable[Sequence[int] | npt.NDArray[np.int64]],
    length: int = NUM_TOKENS,
) -> tuple[list[Sample], int]:
    """The samples that share no run of ``length`` ids with any of ``texts``, and how many do.

    Answers are looked at too: a prompt that the target quotes is as good as known.
    """
    found = [grams(text, length) for text in texts]
    if not found:
        return list(samples), 0
    forbidden = np.unique(np.concatenate(found))
    if forbidden.size == 0:
        return list(samples), 0

    def shares(sample: Sample) -> bool:
        own = grams(sample.ids, length)
        # Not np.isin, which sorts all that is forbidden for every sample.
        places = np.searchsorted(forbidden, own).clip(max=forbidden.size - 1)
        return bool((forbidden[places] == own).any())

    kept = [sample for sample in samples if not shares(sample)]
    return kept, len(samples) - len(kept)


def without_prompts(
    samples: Sequence[Sample], prompts: Iterable[Sequence[int]]
) -> tuple[list[Sample], int]:
    """The samples that answer none of ``prompts``, whole ones, and how many do: what ``without``
    cannot tell of a prompt shorter than a run."""
    asked = {np.asarray(prompt, np.int64).tobytes() for prompt in prompts}
    kept = [s for s in samples if s.ids[: s.answer_start].astype(np.int64).tobytes() not in asked]
    return kept, len(samples) - len(kept)
