"""The sampling parameters of one request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from engines.errors import UsageError

NUM_SEEDS = 2**64
MOST_EDIT = 1e30
"""The largest penalty or bias: beyond it float32 logits would overflow, and a token is out of
question long before."""

MOST_CHOICES = 128
"""Of one prompt at once, as elsewhere."""

Bias = tuple[tuple[int, float], ...]
"""(token id, number), ascending, no id twice."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits.

    temperature  0 takes the most likely token; otherwise the logits are divided by it
    top_k        keep the `top_k` most likely tokens; 0 keeps all
    top_p        of those, keep the fewest that together hold this share of the mass
    seed         names the noise; the same seed gives the same tokens in every mode
    min_p        of those, keep tokens at least this share as likely as the most likely one
    repetition_penalty
                 above 1 makes the tokens of prompt and text less likely: a positive logit is
                 divided by it, a negative one multiplied
    presence_penalty
                 taken off the logit of every token that the text has
    frequency_penalty
                 taken off it once for each time that the text has it
    logit_bias   token id -> what is added to its logit after the penalties, -1e30 to 1e30; a
                 mapping, kept as pairs

    All of them hold at every place of a block of drafted tokens, which count as text there.
    At temperature 0 the seed and the three truncations have no effect: the most likely
    token survives each of them. Raises UsageError on a value outside its range.

    Not for users, ``Request`` sets them. Before position ``banned_before`` (counted from 0, prompt
    included) ``banned_ids`` have no mass, whatever the temperature; the cuts apply to what is
    left. No end of the text is one of ``banned_sequences``. ``is_constrained``: a grammar says
    which tokens may come next.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Bias = ()
    banned_ids: tuple[int, ...] = ()
    banned_before: int = 0
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    is_constrained: bool = False

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
        penalty = self.repetition_penalty
        if not (_is_finite(penalty) and 1 / MOST_EDIT <= penalty <= MOST_EDIT):
            raise _refusal("repetition_penalty", penalty, "a number > 0 (1e-30 to 1e30)")
        for name in ("presence_penalty", "frequency_penalty"):
            if not _is_edit(getattr(self, name)):
                raise _refusal(name, getattr(self, name), "a number from -1e30 to 1e30")
        object.__setattr__(self, "logit_bias", _pairs(self.logit_bias))
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

    @property
    def bias(self) -> Bias:
        """``logit_bias`` as pairs."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def penalises(self) -> bool:
        """True when tokens become less, or more, likely by being in prompt or text."""
        penalties = self.presence_penalty, self.frequency_penalty
        return self.repetition_penalty != 1 or any(penalties)

    @property
    def follows_text(self) -> bool:
        """True when the law hangs on more of the text than the target itself makes of it."""
        return self.penalises or bool(self.banned_sequences) or self.is_constrained

    def bans_at(self, position: int) -> bool:
        """True when some ids have no mass at ``position``."""
        return bool(self.banned_ids) and position < self.banned_before

    def chooses_in_graph(self, first_position: int) -> bool:
        """True when an engine's own argmax is the choice from ``first_position`` on."""
        is_plain = not (self.logit_bias or self.follows_text)
        return self.is_greedy and is_plain and not self.bans_at(first_position)


def choice_params(params: SamplingParams, n: int) -> list[SamplingParams]:
    """The parameters of n choices of one prompt: choice i has seed (seed + i) mod 2**64, and is
    what a request of its own with that seed is. Raises UsageError unless n is 1 to 128."""
    if not _is_int(n) or not 1 <= n <= MOST_CHOICES:
        raise _refusal("n", n, f"a whole number from 1 to {MOST_CHOICES}")
    return [replace(params, seed=(params.seed + i) % NUM_SEEDS) for i in range(n)]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of a float
        return False


def _is_edit(value: object) -> bool:
    return _is_finite(value) and abs(value) <= MOST_EDIT


def _pairs(bias: object) -> Bias:
    """A request's ``logit_bias``, checked."""
    expected = "a mapping of token ids to numbers from -1e30 to 1e30"
    try:
        pairs = [*(bias.items() if isinstance(bias, Mapping) else bias)]  # type: ignore[misc]
        items = dict(pairs)
    except (TypeError, ValueError):
        raise _refusal("logit_bias", bias, expected) from None
    for token, value in items.items():
        if not (_is_id(token) and _is_edit(value)):
            raise _refusal("logit_bias", {token: value}, expected)
    if len(items) < len(pairs):
        raise _refusal("logit_bias", bias, "one number a token id, and an id occurs twice")
    return tuple(sorted((token, float(value)) for token, value in items.items()))


def _refusal(name: str, value: object, expected: str) -> UsageError:
    try:
        shown = repr(value)
    except ValueError:  # Python does not write so many digits
        shown = f"a {type(value).__name__} of thousands of digits"
    if len(shown) > 40:
        shown = shown[:37] + "..."
    return UsageError(f"{name} is {shown}; it must be {expected}")
