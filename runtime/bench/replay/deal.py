"""Outcomes of rounds, dealt in a law's proportions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.spec.cost.laws import KindLaw, Laws
from runtime.spec.fallback import ProposalKind

FloatArray = npt.NDArray[np.float64]

STRATA = 256
"""Outcomes in a deck: the law's own frequencies, to within one of so many."""


class Dealer:
    """Outcomes of all rounds of a run; see ``runtime.backends.drawn.Law``. The same seed gives the
    same answers to the same questions.

    Nothing is looked up in a drawn text: copied proposals would be dealt for like drafted ones.
    """

    def __init__(self, laws: Laws, num_ranks: int, seed: int) -> None:
        """``num_ranks`` (F) candidates are told apart."""
        self._laws = laws
        self._num_ranks = num_ranks
        self._random = np.random.default_rng(seed)
        self._decks: dict[tuple[ProposalKind, int], Deck] = {}

    def draw(self, num_drafted: int, *, ahead: bool) -> tuple[int, int | None]:
        kind = ProposalKind.HIT if ahead else ProposalKind.JIT
        key = kind if num_drafted else ProposalKind.NONE, num_drafted
        deck = self._decks.get(key)
        if deck is None:
            joint = joint_law(self._laws.kinds[key[0]], num_drafted, self._num_ranks)
            deck = self._decks[key] = Deck(joint, self._random)
        return deck.draw()


class Deck:
    """Outcomes of one joint law float64 [K + 1, F + 1], dealt in random order but, every STRATA of
    them, in its proportions: so a short run measures the law and not its own luck."""

    def __init__(self, joint: FloatArray, random: np.random.Generator) -> None:
        self._cumulative = np.cumsum(joint.ravel())
        self._cumulative /= self._cumulative[-1]
        self._num_columns = joint.shape[1]
        self._random = random
        self._cards: list[int] = []

    def draw(self) -> tuple[int, int | None]:
        """(k, f), f None in the last column."""
        if not self._cards:
            places = (np.arange(STRATA) + self._random.random(STRATA)) / STRATA
            cards = np.searchsorted(self._cumulative, places, side="right")
            self._cards = self._random.permutation(cards).tolist()
        accepted, rank = divmod(self._cards.pop(), self._num_columns)
        return accepted, None if rank == self._num_columns - 1 else rank


def joint_law(law: KindLaw, num_draft: int, num_ranks: int) -> FloatArray:
    """Probability of k accepted drafts and a bonus token of rank f: float64 [K + 1, F + 1]. The
    last column is for tokens beyond the F candidates."""
    rejected, bonus = (_with_rest(ranks, num_ranks) for ranks in (law.rejected, law.bonus))
    ranks = np.vstack([np.tile(rejected, (num_draft, 1)), bonus])
    return np.asarray(law.accepted(num_draft)[:, None] * ranks)


def _with_rest(ranks: FloatArray, num_ranks: int) -> FloatArray:
    kept = ranks[:num_ranks]
    kept = np.pad(kept, (0, num_ranks - len(kept)))
    return np.append(kept, max(0.0, 1.0 - float(kept.sum())))
