"""The result of one verification, and the guesses made before it is known.

Named tuples: a round makes W of each a row, and a frozen dataclass takes twice the time to make.
"""

from __future__ import annotations

from typing import NamedTuple


class Outcome(NamedTuple):
    """``accepted`` (k) drafted tokens stand and ``bonus`` (t*) follows: k + 1 tokens emitted."""

    accepted: int
    bonus: int


class Prepared(NamedTuple):
    """K tokens drafted ahead of time for one outcome, and the branch whose rows hold them."""

    branch: int
    tokens: tuple[int, ...]
