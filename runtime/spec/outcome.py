"""The result of one verification, and the guesses made before it is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """``accepted`` (k) drafted tokens stand and ``bonus`` (t*) follows: k + 1 tokens emitted."""

    accepted: int
    bonus: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """K tokens drafted ahead of time for one outcome, and the branch whose rows hold them."""

    branch: int
    tokens: tuple[int, ...]
