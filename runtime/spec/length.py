"""How far a proposal goes: where the draft is unsure of itself, it ends.

A drafted token costs its verification, and before that its drafting, whether it is accepted or not.
It is worth that if it is accepted often enough. The draft's own probability of a token says how
often: on texts of the default pair it is right within a few percent, at every depth. What it is
really worth is learnt, in bins of that probability, from the tokens that were judged.

With ``reached`` the probability that a token and all before it are accepted, in seconds:

    a token is proposed         if  reached * token_s           >=  verify_s
    another one is drafted      if  reached * next * token_s    >=  verify_s + draft_s

where token_s is what a token takes, verify_s what the verification of one more takes, draft_s a
draft step, and ``next`` how often the token behind one of that bin was accepted. Tokens prepared
ahead are drafted already, so for them the first line is all. Under the coupled rule no proposal
changes a token, so this decides on speed alone.

A bin whose tokens are left out is not judged any more, so it forgets what it has seen, until one is
tried again: every thirtieth of them or so.

Replayed on 1,346 tokens of the default pair's greedy texts, against the best fixed K of up to 4:
+1.5 to 2 % in ``sd`` and +3 to 4 % in ``ssd`` where each further token makes a verification a tenth
longer (a CPU), nothing where it costs next to nothing (a GPU at small batches).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.spec.cost import PairTimes

NUM_BINS = 8
PRIOR = 4.0
"""Judged tokens that a bin's own middle counts for."""
FADING = 0.5 ** (1 / 512)
"""Of what a bin has seen, at each further token that it sees or that is left out for it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: what a token of output takes, and what one more costs to verify and to draft."""

    token_s: float
    verify_s: float
    draft_s: float

    @classmethod
    def of(cls, times: PairTimes, batch: int, num_draft: int, tokens_s: float) -> Costs:
        """By step times, at ``tokens_s`` tokens a second of all rows together."""
        widest = times.target.seconds(batch, 1 + num_draft)
        return cls(
            token_s=batch / tokens_s,
            verify_s=max(0.0, widest - times.target.seconds(batch, 1)) / max(1, num_draft),
            draft_s=times.draft.seconds(batch, 1),
        )


class Lengths:
    """One pair's; used on the draft's stream alone. See the module's text."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        middles = (np.arange(NUM_BINS) + 0.5) / NUM_BINS
        self._accepted = _Bins(middles)
        self._next = _Bins(middles)

    def reach(self, reached: float, confidence: float) -> float:
        """The probability that a token of that confidence is accepted, too, after tokens that are
        with probability ``reached``."""
        return reached * self._accepted.rate(confidence)

    def is_proposed(self, reached: float, confidence: float) -> bool:
        """Whether a token of that confidence, which is accepted so often, is worth verifying."""
        if reached * self.costs.token_s >= self.costs.verify_s:
            return True
        self._accepted.fade(confidence)
        return False

    def goes_on(self, reached: float, confidence: float) -> bool:
        """Whether to draft another token behind one of that confidence."""
        worth_s = reached * self._next.rate(confidence) * self.costs.token_s
        if worth_s >= self.costs.verify_s + self.costs.draft_s:
            return True
        self._next.fade(confidence)
        return False

    def kept(self, confidences: Sequence[float]) -> int:
        """How many of tokens that are drafted already are worth proposing."""
        reached = 1.0
        for count, confidence in enumerate(confidences):
            reached = self.reach(reached, confidence)
            if not self.is_proposed(reached, confidence):
                return count
        return len(confidences)

    def observe(self, confidences: Sequence[float], accepted: int) -> None:
        """Proposed tokens of these confidences were judged: the first ``accepted`` stand."""
        judged = confidences[: accepted + 1]
        for place, confidence in enumerate(judged):
            self._accepted.see(confidence, place < accepted)
            if place:
                self._next.see(judged[place - 1], place < accepted)


def confidence(logits: np.ndarray, index: int | None = None, temperature: float = 0.0) -> float:
    """The draft's probability of id ``index`` (None: of its first choice), from its logits [V].

    One pass over 8,192 logits takes some 10 us.
    """
    scaled = logits if temperature in (0.0, 1.0) else logits / np.float32(temperature)
    top = scaled.max()
    chosen = 1.0 if index is None else float(np.exp(scaled[index] - top))
    return chosen / float(np.exp(scaled - top).sum())


class _Bins:
    """Rates by confidence."""

    __slots__ = ("_hits", "_middles", "_trials")

    def __init__(self, middles: np.ndarray) -> None:
        self._middles: list[float] = middles.tolist()
        self._hits = [0.0] * len(middles)
        self._trials = [0.0] * len(middles)

    def rate(self, confidence: float) -> float:
        place = _bin(confidence)
        prior = PRIOR * self._middles[place]
        return (prior + self._hits[place]) / (PRIOR + self._trials[place])

    def see(self, confidence: float, is_accepted: bool) -> None:
        place = _bin(confidence)
        self.fade(confidence)
        self._hits[place] += is_accepted
        self._trials[place] += 1

    def fade(self, confidence: float) -> None:
        place = _bin(confidence)
        self._hits[place] *= FADING
        self._trials[place] *= FADING


def _bin(confidence: float) -> int:
    return min(NUM_BINS - 1, int(confidence * NUM_BINS))
