"""How far a figure of some prompts would move with other prompts of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

RESAMPLES, SHARE, SEED = 2000, 0.95, 0
LEAST = 2
"""Prompts; of one alone nothing is known about others."""

Draws: TypeAlias = npt.NDArray[np.int64]
"""[RESAMPLES, prompts]: places of prompts, each row a data set drawn from the one at hand."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The middle SHARE of what resampled prompts gave."""

    low: float
    high: float


def bootstrap(
    num_prompts: int, figure: Callable[[Draws], npt.NDArray[np.float64]]
) -> Interval | None:
    """The percentile bootstrap over prompts, seeded; None for fewer than LEAST.

    ``figure`` turns draws [R, n] into that figure of each of them [R].
    """
    if num_prompts < LEAST:
        return None
    draws = np.random.default_rng(SEED).integers(0, num_prompts, (RESAMPLES, num_prompts))
    edge = (1 - SHARE) / 2
    low, high = np.quantile(figure(draws), [edge, 1 - edge])
    return Interval(float(low), float(high))


def median_interval(values: npt.NDArray[np.float64]) -> Interval | None:
    """Of the median of ``values``, one a prompt."""
    return bootstrap(len(values), lambda draws: np.median(values[draws], axis=1))


def total_ratio_interval(
    ours: npt.NDArray[np.float64], baseline: npt.NDArray[np.float64]
) -> Interval | None:
    """Of (tokens / seconds) / (tokens / seconds), all prompts together. Both are [prompts, 2]:
    tokens, seconds; a prompt is drawn for both at once, so that its own speed cancels."""

    def ratio(draws: Draws) -> npt.NDArray[np.float64]:
        tokens, seconds = np.moveaxis(ours[draws].sum(axis=1), -1, 0)
        base_tokens, base_seconds = np.moveaxis(baseline[draws].sum(axis=1), -1, 0)
        return np.asarray((tokens * base_seconds) / (seconds * base_tokens), np.float64)

    return bootstrap(len(ours), ratio)
