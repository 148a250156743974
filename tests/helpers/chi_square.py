"""Whether counts follow a law."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np


def excess(counts: np.ndarray, probs: np.ndarray) -> float:
    """Chi-square over what a right law exceeds with probability 1e-6 (Wilson and Hilferty).

    Raises AssertionError for a count where the law has none, or expects too few to judge.
    """
    assert counts[probs == 0].sum() == 0, "an outcome of probability 0 was seen"
    counts, expected = counts[probs > 0], probs[probs > 0] * counts.sum()
    assert expected.min() > 5
    degrees = counts.size - 1
    if degrees == 0:
        return 0.0
    z = NormalDist().inv_cdf(1 - 1e-6)
    limit = degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3
    return float(((counts - expected) ** 2 / expected).sum() / limit)
