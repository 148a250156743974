"""How far drafts of each kind are accepted and where bonus tokens rank, for any K and W.

Known for some K, the laws hold for others: the first k drafted tokens are the same whatever K is,
so a token's acceptance, given that all before it were accepted, does not depend on K. Behind the
last known token the last rate goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound, OutcomeLog
from runtime.spec.statistics import PRIOR_ROUNDS, OutcomeStatistics

FloatArray = npt.NDArray[np.float64]

PUBLISHED_EXPONENT = 1.93
"""r of the paper's law of misses, F ** -r, in a published run: 70B and 1B, greedy."""
DRAFTED = (ProposalKind.HIT, ProposalKind.JIT)
"""Kinds whose tokens come from the draft model: near each other, so each stands in for the other
where it was not seen."""


@dataclass(frozen=True, slots=True, eq=False)
class KindLaw:
    """Proposals of one kind.

    accept    float64 [N]: how often drafted token 1, 2, ... is accepted, given all before it were
    rejected  float64 [F]: how often the bonus token is the draft's candidate 0, 1, ... for its
              place after a rejection; the rejected token is no candidate
    bonus     float64 [F]: the same after all drafted tokens were accepted, or none was drafted
    """

    accept: FloatArray
    rejected: FloatArray
    bonus: FloatArray
    _hit_rates: dict[int, FloatArray] = field(default_factory=dict, repr=False)

    def accepted(self, num_draft: int) -> FloatArray:
        """Pr(k) of K drafted tokens: float64 [K + 1]."""
        reached = self._reached(num_draft)
        return np.asarray(reached - np.append(reached[1:], 0.0))

    def tokens(self, num_draft: int) -> float:
        """Tokens a round emits on average, the bonus token included."""
        return float(self._reached(num_draft).sum())

    def hit_rate(self, num_draft: int, width: int) -> float:
        """Probability that the outcome is among the ``width`` (W) that are prepared, if those are
        the likeliest ones."""
        if num_draft not in self._hit_rates:
            values, likeliest = self._outcomes(num_draft)
            self._hit_rates[num_draft] = values.ravel()[likeliest].cumsum()
        rates = self._hit_rates[num_draft]
        return float(rates[min(width, rates.size) - 1]) if width else 0.0

    def fan_out(self, num_draft: int, width: int) -> tuple[int, ...]:
        """How many of the ``width`` prepared outcomes have k = 0, 1, ... K accepted tokens."""
        values, likeliest = self._outcomes(num_draft)
        places = likeliest[:width] // values.shape[1]
        return tuple(np.bincount(places, minlength=num_draft + 1).tolist())

    def _reached(self, num_draft: int) -> FloatArray:
        """Probability that at least 0, 1, ... K tokens are accepted: float64 [K + 1]."""
        known = self.accept[:num_draft]
        beyond = num_draft - known.size
        if beyond:
            known = np.append(known, np.full(beyond, self.accept[-1] if self.accept.size else 0.0))
        return np.append(1.0, known.cumprod())

    def _outcomes(self, num_draft: int) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """The probability of each (k, rank), float64 [K + 1, F], and their order, likeliest first,
        with better ranks before worse ones of the same k (as in ``runtime.spec.fanout``)."""
        law = self.accepted(num_draft)[:, None]
        ranks = np.vstack([np.tile(self.rejected, (num_draft, 1)), self.bonus])
        falling = law * np.minimum.accumulate(ranks, axis=1)
        return law * ranks, np.argsort(-falling.ravel(), kind="stable")


@dataclass(frozen=True, slots=True, eq=False)
class Laws:
    """All kinds, and how often the lookup fallback finds something to copy after a miss."""

    kinds: Mapping[ProposalKind, KindLaw]
    lookup_share: float = 0.0

    @classmethod
    def of(cls, statistics: OutcomeStatistics) -> Laws:
        """What was learnt so far, of proposals with all K tokens."""
        num_draft = statistics.num_draft
        return cls(
            {kind: _of_kind(statistics, kind, num_draft) for kind in ProposalKind},
            statistics.lookup_share,
        )

    def at_acceptance(self, acceptance: float) -> Laws:
        """These laws if every token of the draft's were accepted with one probability. What is
        copied is accepted as before, and bonus tokens rank as before."""
        accept = np.array([acceptance])
        kinds = {
            kind: law if kind is ProposalKind.LOOKUP else KindLaw(accept, law.rejected, law.bonus)
            for kind, law in self.kinds.items()
        }
        return Laws(kinds, self.lookup_share)

    @property
    def acceptance(self) -> float:
        """Drafted tokens that are accepted, of those that come to be judged (not those behind a
        rejected one)."""
        law = self.kinds[ProposalKind.JIT]
        num_draft = max(1, law.accept.size)
        judged = law.tokens(num_draft - 1)
        return (law.tokens(num_draft) - 1) / judged


def laws_of_acceptance(
    acceptance: float, exponent: float = PUBLISHED_EXPONENT, num_ranks: int = 64
) -> Laws:
    """Every drafted token is accepted with one probability, and F guesses of a bonus token miss
    with probability F ** -exponent (Definition 11 of arXiv 2603.03251). Nothing can be copied."""
    accept = np.array([acceptance])
    ranks = paper_ranks(exponent, num_ranks)
    law = KindLaw(accept, ranks, ranks)
    return Laws(dict.fromkeys(ProposalKind, law))


def paper_ranks(exponent: float, num_ranks: int) -> FloatArray:
    """h(f) where F guesses miss with probability F ** -exponent: float64 [num_ranks].

    That law says of one guess that it never hits. What it leaves for the first two guesses is
    shared so that the first three shares fall by one factor.
    """
    misses = np.arange(1, num_ranks + 3, dtype=np.float64) ** -exponent
    both, third, *others = -np.diff(misses)
    second = (np.sqrt(third * third + 4 * third * both) - third) / 2
    return np.array([both - second, second, third, *others])[:num_ranks]


def laws_of_log(log: OutcomeLog) -> Laws:
    """The laws of a log's rounds, all counted alike. A kind that was seen little is what the
    draft's other proposals show; without ranks in the log, bonus tokens rank as published. Raises
    UsageError for a log in which the draft drafted nothing: it says nothing of its acceptance."""
    num_draft, num_ranks = log.header.num_draft, log.header.num_ranks
    rounds = {kind: [each for each in log.rounds if each.kind is kind] for kind in ProposalKind}
    own = [each for kind in DRAFTED for each in rounds[kind]]
    if not own:
        raise UsageError(
            "no round of the outcome log has tokens that the draft model drafted, so it does not "
            "say how they fare; log more or longer texts, or give --acceptance to plan"
        )
    copied = rounds[ProposalKind.LOOKUP]
    no_prior = np.full(num_draft, np.nan)
    accept_own = _acceptance(own, num_draft, no_prior)
    accept_copied = _acceptance(copied, num_draft, no_prior)
    published = paper_ranks(PUBLISHED_EXPONENT, num_ranks or 64)
    rejected = _ranks(_after(own, all_accepted=False), num_ranks, published)
    ends = [*own, *rounds[ProposalKind.NONE]]
    bonus = _ranks(_after(ends, all_accepted=True), num_ranks, published)
    kinds = {}
    for kind, seen in rounds.items():
        prior = accept_copied if kind is ProposalKind.LOOKUP else accept_own
        kinds[kind] = KindLaw(
            _acceptance(seen, num_draft, prior),
            _ranks(_after(seen, all_accepted=False), num_ranks, rejected),
            _ranks(_after(seen, all_accepted=True), num_ranks, bonus),
        )
    misses = len(copied) + len(rounds[ProposalKind.NONE])
    return Laws(kinds, len(copied) / misses if misses else 0.0)


def _of_kind(statistics: OutcomeStatistics, kind: ProposalKind, num_draft: int) -> KindLaw:
    drafted = 0 if kind is ProposalKind.NONE else num_draft
    law = statistics.accepted_law(drafted, kind)
    ranks = statistics.rank_law(drafted, kind)
    reached = law[::-1].cumsum()[::-1]
    accept = reached[1:] / np.maximum(reached[:-1], np.finfo(np.float64).tiny)
    return KindLaw(accept, ranks[0], ranks[-1])


def _after(rounds: Iterable[LoggedRound], *, all_accepted: bool) -> list[LoggedRound]:
    return [each for each in rounds if (each.accepted == each.num_drafted) is all_accepted]


def _acceptance(rounds: Sequence[LoggedRound], num_draft: int, prior: FloatArray) -> FloatArray:
    """Rate of each token's acceptance [K], of the rounds in which it was drafted and all before it
    were accepted; it starts from ``prior``, or from the rate of all tokens together (NaN)."""
    accepted = np.array([each.accepted for each in rounds], np.int64)
    drafted = np.array([each.num_drafted for each in rounds], np.int64)
    judged = _num_above(np.minimum(drafted, accepted + 1), num_draft)
    passed = _num_above(accepted, num_draft)
    overall = passed.sum() / judged.sum() if judged.sum() else 0.0
    prior = np.where(np.isnan(prior), overall, prior)
    return np.asarray((passed + PRIOR_ROUNDS * prior) / (judged + PRIOR_ROUNDS))


def _num_above(counts: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """How many of ``counts``, 0 to ``most``, are above 0, 1, ... : int64 [most]."""
    num_of = np.bincount(counts, minlength=most + 1)
    return np.asarray(num_of[:0:-1].cumsum()[::-1])


def _ranks(rounds: Sequence[LoggedRound], num_ranks: int, prior: FloatArray) -> FloatArray:
    """h(f) [F] of the rounds in which a rank was looked for, starting from ``prior``."""
    if not num_ranks:
        return prior
    seen = [
        num_ranks if each.rank is None else each.rank
        for each in rounds
        if each.rank is not None or each.hit is not None
    ]
    counts = np.bincount(np.array(seen, np.int64), minlength=num_ranks + 1)[:num_ranks]
    return np.asarray((counts + PRIOR_ROUNDS * prior) / (len(seen) + PRIOR_ROUNDS))
