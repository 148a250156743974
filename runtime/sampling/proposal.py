"""What a drafter hands to the target, and what a verification rule answers.

A proposal says itself how its tokens came about, so acceptance never hangs on a mode flag.
All ids are target ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

MAX_SUPPORT = 128


@dataclass(frozen=True, slots=True, eq=False)
class SparseLaw:
    """The law q one token was drawn from: at most MAX_SUPPORT ids, zero elsewhere.

    ids    int32 [M], target ids, no id twice
    probs  float64 [M], positive, summing to 1
    """

    ids: npt.NDArray[np.int32]
    probs: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        size = self.ids.size
        if not 1 <= size <= MAX_SUPPORT or self.ids.shape != self.probs.shape:
            raise UsageError(
                f"a sparse law has ids {self.ids.shape} and probs {self.probs.shape}; "
                f"both must be [M] with M in 1..{MAX_SUPPORT}"
            )

    def prob(self, token: int) -> float:
        """The probability of a target id, 0 outside the support."""
        return float(self.probs[self.ids == token].sum())


@dataclass(frozen=True, slots=True)
class Drafted:
    """Tokens from the draft model.

    `law` holds, for each token, the law it was drawn from. The coupled rule does not need
    it (None); the ratio rule refuses a proposal without it.
    """

    tokens: tuple[int, ...]
    law: tuple[SparseLaw, ...] | None = None

    def __post_init__(self) -> None:
        if self.law is not None and len(self.law) != len(self.tokens):
            raise UsageError(
                f"a proposal has {len(self.tokens)} drafted tokens but {len(self.law)} laws; "
                "there must be one law a token"
            )


@dataclass(frozen=True, slots=True)
class Lookup:
    """Tokens from a deterministic source such as n-grams of the text: q is a point mass."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """No drafted tokens: the round yields the bonus token alone."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Always empty."""
        return ()


Proposal = Drafted | Lookup | Nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a verification: the round emits tokens[:accepted] and then `bonus`."""

    accepted: int
    bonus: int
