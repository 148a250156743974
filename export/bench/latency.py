"""Latencies in figures. Percentiles are ours: polygraphy knows the last time and a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of ``values`` do not exceed, between two of them by proportion.

    With n sorted values it stands at index percent / 100 x (n - 1), as numpy's default does.
    ValueError for no values, or a percent outside 0 .. 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    ordered = sorted(values)
    at = percent / 100 * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one kind of call, in seconds."""

    iterations: int
    mean_s: float
    min_s: float
    p50_s: float
    p90_s: float
    p99_s: float


def summarise(seconds: Sequence[float]) -> Latency:
    """Figures of at least one time."""
    return Latency(
        iterations=len(seconds),
        mean_s=math.fsum(seconds) / len(seconds),
        min_s=min(seconds),
        p50_s=percentile(seconds, 50),
        p90_s=percentile(seconds, 90),
        p99_s=percentile(seconds, 99),
    )
