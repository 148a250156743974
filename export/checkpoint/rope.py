"""Rotary embeddings: the kinds of scaling that stretch a context, and what they do to frequencies.

A scaling that depends on how long the text is ("dynamic", and LongRoPE beyond the original context)
has no place in an engine: its tables, and the keys in its caches, are made for all lengths at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Every position divided by ``factor`` ("rope_type": "linear")."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Llama 3.1's stretching of the rotary frequencies ("rope_type": "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """YaRN (arXiv 2309.00071, "rope_type": "yarn").

    ``attention_factor`` multiplies rotated queries and keys, so scores by its square. ``truncate``
    rounds the ends of the blended range of frequencies outwards, to whole ones.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int
    attention_factor: float
    truncate: bool


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE within its original context (arXiv 2402.13753, "rope_type": "longrope" or "su").

    ``short_factors`` divide the frequencies one by one. Texts longer than the original context
    would need other ones from their first token on.
    """

    short_factors: tuple[float, ...]
    attention_factor: float


RopeScaling = LinearRope | Llama3Rope | YarnRope | LongRope


def yarn_attention_factor(factor: float) -> float:
    """YaRN's own choice: 0.1 ln(factor) + 1 (equation 22); none where nothing is stretched."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def long_attention_factor(factor: float, original_max_position: int) -> float:
    """LongRoPE's own choice: sqrt(1 + ln(factor) / ln(original context))."""
    if factor <= 1.0 or original_max_position <= 1:
        return 1.0
    return math.sqrt(1.0 + math.log(factor) / math.log(original_max_position))


def attention_factor(scaling: RopeScaling | None) -> float:
    """What rotated queries and keys are multiplied with."""
    return scaling.attention_factor if isinstance(scaling, (YarnRope, LongRope)) else 1.0


def frequencies(theta: float, size: int, scaling: RopeScaling | None) -> npt.NDArray[np.float64]:
    """Angular frequencies, radians per position, of ``size`` rotated dimensions. [size / 2].

    Plain: theta^(-2i / size). ``Llama3Rope`` looks at how many turns a frequency makes within the
    original context:

    - at least ``high_freq_factor`` turns: kept;
    - at most ``low_freq_factor`` turns: divided by ``factor``;
    - between: a blend of the two, linear in the number of turns.

    ``YarnRope`` blends linearly in the frequency's number i, between those that make ``beta_fast``
    and ``beta_slow`` turns.
    """
    plain: npt.NDArray[np.float64] = theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    match scaling:
        case None:
            return plain
        case LinearRope():
            return plain / scaling.factor
        case LongRope():
            return plain / np.array(scaling.short_factors, dtype=np.float64)
        case Llama3Rope():
            turns = scaling.original_max_position * plain / (2 * np.pi)
            span = scaling.high_freq_factor - scaling.low_freq_factor
            kept = (turns - scaling.low_freq_factor) / span
        case YarnRope():
            first, last = _yarn_range(theta, size, scaling)
            kept = 1.0 - (np.arange(size // 2, dtype=np.float64) - first) / (last - first)
    kept = np.clip(kept, 0.0, 1.0)
    blended: npt.NDArray[np.float64] = plain * (kept + (1.0 - kept) / scaling.factor)
    return blended


def _yarn_range(theta: float, size: int, rope: YarnRope) -> tuple[float, float]:
    """Numbers of the last frequency that is kept and the first that is divided."""

    def number(turns: float) -> float:
        """Of the frequency that makes so many turns within the original context."""
        return (
            size
            * math.log(rope.original_max_position / (turns * 2 * np.pi))
            / (2 * math.log(theta))
        )

    first, last = number(rope.beta_fast), number(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    return first, last if last != first else first + 1e-3
