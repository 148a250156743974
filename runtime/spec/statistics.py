"""What past rounds showed: accepted counts and candidate ranks, by where the drafts came from.

A proposal prepared ahead, one drafted just in time, one copied from the text and none at all
are accepted by different laws, and so are the ranks of the bonus token that follows: where a
draft's token was rejected its own first choice is out of the race, where a copied one was it is
not. So each ``ProposalKind`` has its histograms; its ranks after a rejection and after all were
accepted are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.spec.fallback import ProposalKind
from runtime.spec.fanout import covered, fan_out, geometric, power_law_ranks

PRIOR_ROUNDS = 8.0
"""How many observed rounds the prior counts for: it fades within the first sentences."""
HALF_LIFE = 512
"""Rounds after which an observation counts half. On texts of the default pair sorted by topic,
shorter and longer memories predict outcomes worse; on shuffled ones nothing is lost by it."""
PLAN_EVERY = 8
"""Rounds between two looks at the histograms: one round hardly moves them."""
DEFAULT_ALPHA = 0.6
LOOKUP_ALPHA = 0.5
LOOKUP_SHARE = 0.25
DEFAULT_EXPONENT = 1.0

_GROWTH = 2.0 ** (1 / HALF_LIFE)
_LARGEST_WEIGHT = 1e100


@dataclass(frozen=True, slots=True)
class Plan:
    """How many candidates to prepare after each accepted count, [num_drafted + 1], and the
    probability that one of them is the outcome."""

    counts: tuple[int, ...]
    hit_rate: float


class OutcomeStatistics:
    """Histograms that start from a prior, learn from ``observe`` and forget by HALF_LIFE.

    ``num_rounds``, ``num_hits`` and ``predicted_hits`` (the sum of the plans' hit rates) count
    rounds by the kind of proposal that was verified: HIT rounds follow a hit, others a miss.
    """

    def __init__(self, num_draft: int, num_ranks: int, ranks: Sequence[float] = ()) -> None:
        """``num_ranks`` (F) candidates are told apart. ``ranks`` are the draft maker's figures
        (share of tokens at rank 0, 1, ...), if any."""
        self.num_draft = num_draft
        self.num_ranks = num_ranks
        self.num_rounds = dict.fromkeys(ProposalKind, 0)
        self.num_hits = dict.fromkeys(ProposalKind, 0)
        self.predicted_hits = dict.fromkeys(ProposalKind, 0.0)
        self._accepted = {
            (kind, drafted): _Histogram(geometric(_prior_alpha(kind, ranks), drafted))
            for kind in ProposalKind
            for drafted in range(num_draft + 1)
        }
        self._ranks = {
            (kind, all_accepted): _Histogram(_prior_ranks(kind, all_accepted, ranks, num_ranks))
            for kind in ProposalKind
            for all_accepted in (False, True)
        }
        self._plans: dict[tuple[ProposalKind, int, int], Plan] = {}
        self._num_since_plans = 0

    def accepted_law(self, num_drafted: int, kind: ProposalKind | None = None) -> np.ndarray:
        """Pr(k) of a row with so many drafted tokens: float64 [num_drafted + 1].

        ``kind`` is HIT, or NONE where nothing was drafted, unless it is given.
        """
        return self._accepted[kind or _usual(num_drafted), num_drafted].law()

    def rank_law(self, num_drafted: int, kind: ProposalKind | None = None) -> np.ndarray:
        """h_k(f): float64 [num_drafted + 1, F]; the last row is for all tokens accepted."""
        kind = kind or _usual(num_drafted)
        rejected, bonus = (self._ranks[kind, every].law()[:-1] for every in (False, True))
        return np.vstack([np.tile(rejected, (num_drafted, 1)), bonus])

    def plan(self, kind: ProposalKind, num_drafted: int, width: int) -> Plan:
        """The best ``width`` outcomes to prepare for a proposal of that kind and length."""
        key = kind, num_drafted, width
        if key not in self._plans:
            law, ranks = self.accepted_law(num_drafted, kind), self.rank_law(num_drafted, kind)
            counts = fan_out(law, ranks, width)
            self._plans[key] = Plan(tuple(counts.tolist()), covered(law, ranks, counts))
        return self._plans[key]

    def predicted_hit_rate(
        self, kind: ProposalKind, width: int, num_drafted: int | None = None
    ) -> float:
        """The plan's; ``num_drafted`` is K, or 0 for NONE, unless it is given."""
        if num_drafted is None:
            num_drafted = 0 if kind is ProposalKind.NONE else self.num_draft
        return self.plan(kind, num_drafted, width).hit_rate

    def observe(
        self,
        *,
        kind: ProposalKind,
        num_drafted: int,
        accepted: int,
        rank: int | None,
        hit: bool,
        predicted: float = 0.0,
        ends_round: bool = True,
    ) -> None:
        """Count one row's round.

        ``rank`` is the bonus token's among the candidates at its place, None where it was not
        one; ``predicted`` is the hit rate of the plan that was prepared. ``ends_round``: no other
        row of the same round follows.
        """
        self._accepted[kind, num_drafted].add(accepted)
        beyond = self.num_ranks
        self._ranks[kind, accepted == num_drafted].add(
            beyond if rank is None else min(rank, beyond)
        )
        self.num_rounds[kind] += 1
        self.num_hits[kind] += hit
        self.predicted_hits[kind] += predicted
        self._num_since_plans += ends_round
        if self._num_since_plans >= PLAN_EVERY:
            self._plans.clear()
            self._num_since_plans = 0

    @property
    def lookup_share(self) -> float:
        """Share of misses, under the lookup fallback, after which there is something to copy."""
        found, none = (self.num_rounds[kind] for kind in (ProposalKind.LOOKUP, ProposalKind.NONE))
        return (PRIOR_ROUNDS * LOOKUP_SHARE + found) / (PRIOR_ROUNDS + found + none)

    @property
    def hit_rate(self) -> float:
        """Share of rounds whose outcome had been prepared."""
        rounds = sum(self.num_rounds.values())
        return sum(self.num_hits.values()) / rounds if rounds else 0.0


class _Histogram:
    """Counts that fade, above a prior that does not."""

    __slots__ = ("_counts", "_prior", "_weight")

    def __init__(self, prior: np.ndarray) -> None:
        self._prior = PRIOR_ROUNDS * prior
        self._counts = np.zeros_like(prior)
        # Newer observations weigh more, which is cheaper than making all older ones weigh less.
        self._weight = 1.0

    def add(self, index: int) -> None:
        self._weight *= _GROWTH
        self._counts[index] += self._weight
        if self._weight > _LARGEST_WEIGHT:
            self._counts /= self._weight
            self._weight = 1.0

    def law(self) -> np.ndarray:
        total = self._prior + self._counts / self._weight
        return np.asarray(total / total.sum())


def _usual(num_drafted: int) -> ProposalKind:
    return ProposalKind.HIT if num_drafted else ProposalKind.NONE


def _prior_alpha(kind: ProposalKind, figures: Sequence[float]) -> float:
    """The share of drafted tokens that are accepted: rank 0 is the draft's own choice."""
    if kind is ProposalKind.LOOKUP:
        return LOOKUP_ALPHA
    return figures[0] if figures else DEFAULT_ALPHA


def _prior_ranks(
    kind: ProposalKind, all_accepted: bool, figures: Sequence[float], num_ranks: int
) -> np.ndarray:
    """h(f), and what it leaves for tokens beyond the candidates: float64 [F + 1]."""
    if len(figures) < 2:
        law = power_law_ranks(DEFAULT_EXPONENT, num_ranks)
    elif all_accepted or kind is ProposalKind.LOOKUP:
        law = _fit(np.asarray(figures), num_ranks)
    else:
        # The draft's first choice was rejected and taken out: rank f + 1 stands at f.
        law = _fit(np.asarray(figures[1:]) / max(1e-6, 1.0 - figures[0]), num_ranks)
    return np.append(law, max(0.0, 1.0 - float(law.sum())))


def _fit(values: np.ndarray, length: int) -> np.ndarray:
    """``values`` cut or continued (halving) to ``length``."""
    if len(values) >= length:
        return values[:length]
    tail = values[-1] * 0.5 ** np.arange(1, length - len(values) + 1)
    return np.concatenate([values, tail])
