"""The sampling parameters of one request."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engines.errors import UsageError

NUM_SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits.

    temperature  0 takes the most likely token; otherwise the logits are divided by it
    top_k        keep the `top_k` most likely tokens; 0 keeps all
    top_p        of those, keep the fewest that together hold this share of the mass
    seed         names the noise; the same seed gives the same tokens in every mode
    min_p        of those, keep tokens at least this share as likely as the most likely one

    At temperature 0 the seed and the three truncations have no effect: the most likely
    token survives each of them. Raises UsageError on a value outside its range.

    Not for users: ``Request`` sets ``banned_ids`` and ``banned_before`` for a text that must not
    end yet. Before position ``banned_before`` (counted from 0, prompt included) those ids have no
    mass, whatever the temperature; the cuts apply to what is left.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    banned_ids: tuple[int, ...] = ()
    banned_before: int = 0

    def __post_init__(self) -> None:
        if not (_is_finite(self.temperature) and self.temperature >= 0):
            raise _refusal("temperature", self.temperature, "a finite number >= 0")
        if not (_is_int(self.top_k) and self.top_k >= 0):
            raise _refusal("top_k", self.top_k, "a whole number >= 0 (0 keeps every token)")
        if not (_is_finite(self.top_p) and 0 < self.top_p <= 1):
            raise _refusal("top_p", self.top_p, "a number in (0, 1] (1 keeps every token)")
        if not (_is_int(self.seed) and 0 <= self.seed < NUM_SEEDS):
            raise _refusal("seed", self.seed, "a whole number in [0, 2**64)")
        if not (_is_finite(self.min_p) and 0 <= self.min_p <= 1):
            raise _refusal("min_p", self.min_p, "a number in [0, 1] (0 keeps every token)")
        if not (isinstance(self.banned_ids, tuple) and all(map(_is_id, self.banned_ids))):
            raise _refusal("banned_ids", self.banned_ids, "a tuple of token ids")
        if not _is_id(self.banned_before):
            raise _refusal("banned_before", self.banned_before, "a whole number >= 0")

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """True when some tokens may be cut from the law before a token is drawn."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    def bans_at(self, position: int) -> bool:
        """True when some ids have no mass at ``position``."""
        return bool(self.banned_ids) and position < self.banned_before

    def chooses_in_graph(self, first_position: int) -> bool:
        """True when an engine's own argmax is the choice from ``first_position`` on."""
        return self.is_greedy and not self.bans_at(first_position)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of a float
        return False


def _refusal(name: str, value: object, expected: str) -> UsageError:
    shown = repr(value)
    if len(shown) > 40:
        shown = shown[:37] + "..."
    return UsageError(f"{name} is {shown}; it must be {expected}")
