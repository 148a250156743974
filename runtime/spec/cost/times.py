"""How long calls of the two engines take, by their shape.

A call has B rows of T tokens: a verification T = 1 + the most tokens drafted, a branch step T = W.
A few shapes are measured or given; the others follow from them piecewise linearly, in one of two
ways. Beyond the last point the last slope goes on, before the first one its value holds: a call is
not free because it is small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

LONGEST_S = 3600.0
SHORTEST_MS, LONGEST_MS = 1e-6, LONGEST_S * 1e3
"""Of a call in a question or a profile: what lies outside is a slip, or gives no finite rate."""


class CallTimes(Protocol):
    """Seconds of one call of an engine."""

    def seconds(self, rows: int, tokens: int) -> float:
        """``rows`` (B) rows of ``tokens`` (T) tokens each."""
        ...


@dataclass(frozen=True, slots=True)
class ByTokens:
    """A call costs what its tokens cost, B * T together: what a weight-bound GPU comes close to.

    ``tokens`` rises strictly, from at least 1; ``seconds_at`` [len(tokens)]. One point is a
    constant. Raises ValueError for what is no such curve.
    """

    tokens: tuple[int, ...]
    seconds_at: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_axis("tokens", self.tokens)
        _require_seconds(self.seconds_at, len(self.tokens))

    def seconds(self, rows: int, tokens: int) -> float:
        """See ``CallTimes``."""
        return _at(self.tokens, self.seconds_at, rows * tokens)


@dataclass(frozen=True, slots=True)
class Grid:
    """Measured at every pair of ``rows`` and ``tokens``; linear in each between them.

    Both axes rise strictly, from at least 1; ``seconds_at`` [len(rows)][len(tokens)]. An axis with
    one point leaves the call's time unchanged along it. Raises ValueError for what is no such grid.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds_at: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _require_axis("rows", self.rows)
        _require_axis("tokens", self.tokens)
        if len(self.seconds_at) != len(self.rows):
            raise ValueError(f"{len(self.rows)} rows, but times of {len(self.seconds_at)}")
        for line in self.seconds_at:
            _require_seconds(line, len(self.tokens))

    def seconds(self, rows: int, tokens: int) -> float:
        """See ``CallTimes``."""
        if len(self.rows) == 1:
            return _at(self.tokens, self.seconds_at[0], tokens)
        return _at(self.rows, [_at(self.tokens, line, tokens) for line in self.seconds_at], rows)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Another's seconds, times ``factor``."""

    times: CallTimes
    factor: float

    def seconds(self, rows: int, tokens: int) -> float:
        """See ``CallTimes``."""
        return self.factor * self.times.seconds(rows, tokens)


@dataclass(frozen=True, slots=True)
class PairTimes:
    """What rounds are made of: calls, and the runtime's own work around them.

    target         calls of the target in ``ar`` and ``sd``
    target_beside  the same while the draft works too (``ssd``): on one processor it has fewer
                   cores then
    draft          calls of the draft between two verifications (``sd``)
    draft_beside   the same while the target works too, and just in time (``ssd``)
    exchange_s     from an outcome to the start of the next verification, where nothing is drafted
                   in between; of every round of every mode
    ahead_s        how much more than ``exchange_s`` a round of ``ssd`` takes beyond the draft's
                   calls, where these are what takes longest
    again_s        what the target waits beside each call of the draft just in time, in ``ssd``
    """

    target: CallTimes
    target_beside: CallTimes
    draft: CallTimes
    draft_beside: CallTimes
    exchange_s: float = 0.0
    ahead_s: float = 0.0
    again_s: float = 0.0

    @classmethod
    def apart(cls, target: CallTimes, draft: CallTimes, exchange_s: float = 0.0) -> PairTimes:
        """Two devices: neither engine is slower because the other works."""
        return cls(target, target, draft, draft, exchange_s)


def _at(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    if len(xs) == 1 or x <= xs[0]:
        return ys[0]
    right = min(bisect_left(xs, x), len(xs) - 1)
    left = right - 1
    slope = (ys[right] - ys[left]) / (xs[right] - xs[left])
    if x > xs[-1]:  # noise may let the last points fall; more tokens are not less work for it
        slope = max(0.0, slope)
        left = right
    return ys[left] + slope * (x - xs[left])


def _require_axis(name: str, values: tuple[int, ...]) -> None:
    rises = all(a < b for a, b in pairwise(values))
    if not values or values[0] < 1 or not rises:
        raise ValueError(f"{name} are {values}, expected numbers from 1 on that rise")


def _require_seconds(values: Sequence[float], count: int) -> None:
    if len(values) != count or not all(0 <= value < LONGEST_S for value in values):
        raise ValueError(
            f"times are {tuple(values)}, expected {count} of 0 to {LONGEST_S:.0f} seconds"
        )
