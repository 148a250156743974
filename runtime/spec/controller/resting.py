"""Rounds without the draft engine: plain ones, or lookups with a look at plain decoding between."""

from __future__ import annotations

from runtime.spec.plan import PLAIN, RoundPlan

DRIFT, DRIFT_ROUNDS = 1.03, 16
"""Plain decoding is looked at as soon as plain rounds are believed to have become so much slower or
faster, which nobody sees while something else runs, but not sooner than after so many rounds."""


def has_drifted(before_s: float, now_s: float, num_rounds: int) -> bool:
    """Whether a plain round, seen so many rounds ago, is believed to be another one now."""
    return num_rounds >= DRIFT_ROUNDS and not before_s / DRIFT < now_s < before_s * DRIFT


class Resting:
    """Says of each round whether it is one of lookups. ``is_copying``: they are done now;
    ``has_changed``: since the round before."""

    def __init__(self, check_every: int, check_rounds: int) -> None:
        """After ``check_every`` rounds of lookups come ``check_rounds`` plain ones."""
        self.is_copying = self.has_changed = False
        self._check_every = check_every
        self._check_rounds = check_rounds
        self._num_copying = 0  # since plain rounds
        self._num_to_check = 0
        self._plain_s = 0.0

    def next_round(self, wanted: RoundPlan, plain_s: float) -> RoundPlan:
        """What to do where ``wanted`` looks best and may be paid for. ``plain_s``: what a plain
        round is believed to take."""
        is_copying = wanted is not PLAIN
        self.has_changed = is_copying is not self.is_copying
        self.is_copying = is_copying
        if is_copying and not self._num_to_check:
            self._num_copying += 1
            is_late = self._num_copying > self._check_every
            if not is_late and not has_drifted(self._plain_s, plain_s, self._num_copying):
                return wanted
            self._num_to_check = self._check_rounds
        self._num_to_check = max(0, self._num_to_check - 1) if is_copying else 0
        self._num_copying, self._plain_s = 0, plain_s
        return PLAIN
