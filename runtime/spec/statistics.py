"""What past rounds showed: accepted counts and candidate ranks.

Accepted counts are kept apart by how many tokens were drafted (none after a miss), since the two
follow other laws. Ranks are kept apart by whether all drafted tokens were accepted: where one was
rejected, the draft's own first choice is out of the race.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.spec.fanout import geometric, power_law_ranks

PRIOR_ROUNDS = 8.0
"""How many observed rounds the prior counts for: it fades within the first sentences."""
DEFAULT_ALPHA = 0.6
DEFAULT_EXPONENT = 1.0


class OutcomeStatistics:
    """Histograms that start from a prior and learn from ``observe``.

    Rank F (the last) stands for "not among the F candidates".
    """

    def __init__(self, num_draft: int, num_ranks: int, ranks: Sequence[float] = ()) -> None:
        """``ranks`` are the draft maker's figures (share of tokens at rank 0, 1, ...), if any."""
        self.num_draft = num_draft
        self.num_ranks = num_ranks
        alpha = ranks[0] if ranks else DEFAULT_ALPHA
        # What stands at rank f + 1 when the drafted token itself was rejected and taken out.
        if len(ranks) > 1:
            rejected = _fit(np.asarray(ranks[1:]) / max(1e-6, 1.0 - alpha), num_ranks)
            bonus = _fit(np.asarray(ranks), num_ranks)
        else:
            rejected = bonus = power_law_ranks(DEFAULT_EXPONENT, num_ranks)
        self._accepted = {
            drafted: PRIOR_ROUNDS * geometric(alpha, drafted) for drafted in range(num_draft + 1)
        }
        self._ranks = {
            False: PRIOR_ROUNDS * _with_rest(rejected),
            True: PRIOR_ROUNDS * _with_rest(bonus),
        }
        self.num_rounds = {True: 0, False: 0}
        self.num_hits = {True: 0, False: 0}

    def accepted_law(self, num_drafted: int) -> np.ndarray:
        """Pr(k) of a row with so many drafted tokens: float64 [num_drafted + 1]."""
        counts = self._accepted[num_drafted]
        return np.asarray(counts / counts.sum())

    def rank_law(self, num_drafted: int) -> np.ndarray:
        """h_k(f): float64 [num_drafted + 1, F]; the last row is for all tokens accepted."""
        rejected, bonus = (
            self._ranks[all_accepted][:-1] / self._ranks[all_accepted].sum()
            for all_accepted in (False, True)
        )
        return np.vstack([np.tile(rejected, (num_drafted, 1)), bonus])

    def observe(
        self, *, num_drafted: int, accepted: int, rank: int | None, after_hit: bool, hit: bool
    ) -> None:
        """Count one row's round; ``rank`` is the bonus token's among the candidates, if it was."""
        self._accepted[num_drafted][accepted] += 1
        counts = self._ranks[accepted == num_drafted]
        counts[self.num_ranks if rank is None else min(rank, self.num_ranks)] += 1
        self.num_rounds[after_hit] += 1
        self.num_hits[after_hit] += hit

    @property
    def hit_rate(self) -> float:
        """Share of rounds whose outcome had been prepared."""
        rounds = sum(self.num_rounds.values())
        return sum(self.num_hits.values()) / rounds if rounds else 0.0


def _fit(values: np.ndarray, length: int) -> np.ndarray:
    """``values`` cut or continued (halving) to ``length``."""
    if len(values) >= length:
        return values[:length]
    tail = values[-1] * 0.5 ** np.arange(1, length - len(values) + 1)
    return np.concatenate([values, tail])


def _with_rest(law: np.ndarray) -> np.ndarray:
    """``law`` with the mass it leaves over appended."""
    return np.append(law, max(0.0, 1.0 - float(law.sum())))
