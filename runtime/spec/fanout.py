"""Which outcomes to prepare: the W likeliest, by what was measured.

An outcome (k, t*) has probability Pr(k) * h_k(f) when t* is the draft's f-th candidate after k
accepted tokens. With a measured histogram Pr(k) the best W outcomes are just the W largest
products; no power law and no rounding are needed (the paper's closed form, Theorem 12 of arXiv
2603.03251, assumes a geometric Pr(k) and a power law for h).
"""

from __future__ import annotations

import numpy as np


def fan_out(accepted: np.ndarray, ranks: np.ndarray, width: int) -> np.ndarray:
    """How many candidates to prepare after each accepted count: int64 [K + 1], summing to <= width.

    ``accepted`` float [K + 1] is Pr(k); ``ranks`` float [K + 1, F] is h_k(f). A candidate is
    taken only after all better-ranked ones of its k, so h_k is made non-increasing first.
    """
    value = accepted[:, None] * np.minimum.accumulate(ranks, axis=1)  # [K+1, F]
    flat = value.ravel()
    take = min(width, flat.size)
    # A stable sort keeps lower ranks first among equal values, so each k's picks are a prefix.
    chosen = np.argsort(-flat, kind="stable")[:take]
    return np.bincount(chosen // value.shape[1], minlength=len(accepted))


def covered(accepted: np.ndarray, ranks: np.ndarray, counts: np.ndarray) -> float:
    """The probability that the outcome is among the ``counts`` int [K + 1] that are prepared."""
    within = np.arange(ranks.shape[1]) < counts[:, None]
    return float((accepted[:, None] * ranks)[within].sum())


def geometric(alpha: float, num_draft: int) -> np.ndarray:
    """Pr(k) when each token is accepted with probability ``alpha``: float64 [K + 1]."""
    counts = np.arange(num_draft + 1)
    law = alpha**counts * (1 - alpha)
    law[-1] = alpha**num_draft
    return np.asarray(law)


def power_law_ranks(exponent: float, num_ranks: int) -> np.ndarray:
    """h(f) when F guesses miss with probability (F + 1) ** -exponent: float64 [F].

    The paper's law (Definition 11) shifted by one, so that a single guess can hit.
    """
    misses = np.arange(1, num_ranks + 2, dtype=np.float64) ** -exponent
    return np.asarray(-np.diff(misses))
