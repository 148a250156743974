"""What a mode would yield, from measured step times and acceptance laws.

Theorem 7 of arXiv 2603.03251, with measured laws in place of its parameters.

Tokens a second = tokens a round / seconds a round. Seconds are those of one row's round. ``ssd``
alternates between rounds after a hit and after a miss, which differ in all three of tokens,
seconds and the probability that a hit follows: a chain of two states, whose share of rounds after
a hit is p_b / (1 - p_p + p_b) with p_p and p_b the hit rates after a hit and after a miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.statistics import OutcomeStatistics

LONGEST_S = 3600


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one call, each measured alone.

    decode_s       plain decoding step, the target on all cores
    verify_all_s   verification of K drafts, the target on all cores
    verify_s       verification of K drafts on the cores that ``ssd`` leaves the target
    verify_none_s  verification of no draft on the cores that ``ssd`` leaves the target
    draft_s        one draft token
    branches_s     one step of all branches
    """

    decode_s: float
    verify_all_s: float
    verify_s: float
    verify_none_s: float
    draft_s: float
    branches_s: float

    def __post_init__(self) -> None:
        # They come from a file of the user's: a wrong one is measured again.
        if not all(0 < getattr(self, field.name) < LONGEST_S for field in fields(self)):
            raise ValueError(f"step times lie between 0 and {LONGEST_S} s, found {self}")


@dataclass(frozen=True, slots=True)
class Regime:
    """Rounds of one kind on average: emitted tokens, seconds, and how often a hit follows."""

    tokens: float
    seconds: float
    hit_rate: float


def tokens_per_round(law: np.ndarray) -> float:
    """Expected emitted tokens, bonus included, under the accepted-count law Pr(k) [K + 1]."""
    return float(law @ np.arange(1, len(law) + 1))


def hit_share(after_hit: Regime, after_miss: Regime) -> float:
    """Share of rounds that begin with a hit, in the long run."""
    return after_miss.hit_rate / max(1e-9, 1 - after_hit.hit_rate + after_miss.hit_rate)


def ssd_rate(after_hit: Regime, after_miss: Regime) -> float:
    """Tokens a second of the two-state chain."""
    share = hit_share(after_hit, after_miss)
    return _mean(share, after_hit.tokens, after_miss.tokens) / _mean(
        share, after_hit.seconds, after_miss.seconds
    )


def predict(
    times: StepTimes,
    statistics: OutcomeStatistics,
    width: int,
    fallback: Fallback = Fallback.ZERO,
) -> dict[str, float]:
    """Predicted tokens a second of ``ar``, ``sd`` and ``ssd``, the latter for one row."""
    num_draft = statistics.num_draft
    just_in_time = tokens_per_round(statistics.accepted_law(num_draft, ProposalKind.JIT))
    after_hit = regime(times, statistics, width, ProposalKind.HIT)
    return {
        "ar": 1 / times.decode_s,
        "sd": just_in_time / (times.verify_all_s + num_draft * times.draft_s),
        "ssd": ssd_rate(after_hit, miss_regime(times, statistics, width, fallback)),
    }


def best_fallback(
    times: StepTimes, statistics: Mapping[Fallback, OutcomeStatistics], width: int
) -> Fallback:
    """The one predicted to be fastest, of those that there are statistics with."""
    rates = {
        fallback: predict(times, seen, width, fallback)["ssd"]
        for fallback, seen in statistics.items()
    }
    return max(rates, key=lambda fallback: rates[fallback])


def regime(
    times: StepTimes, statistics: OutcomeStatistics, width: int, kind: ProposalKind
) -> Regime:
    """Rounds of ``ssd`` that verify a proposal of that kind, with ``width`` branches ahead."""
    num_draft = statistics.num_draft
    drafted = 0 if kind is ProposalKind.NONE else num_draft
    return Regime(
        tokens=tokens_per_round(statistics.accepted_law(drafted, kind)),
        seconds=round_seconds(times, num_draft, kind),
        hit_rate=statistics.plan(kind, drafted, width).hit_rate,
    )


def miss_regime(
    times: StepTimes, statistics: OutcomeStatistics, width: int, fallback: Fallback
) -> Regime:
    """Rounds after a miss. A lookup that finds nothing leaves one without drafts."""
    if fallback is Fallback.JIT:
        return regime(times, statistics, width, ProposalKind.JIT)
    none = regime(times, statistics, width, ProposalKind.NONE)
    if fallback is Fallback.ZERO:
        return none
    copied = regime(times, statistics, width, ProposalKind.LOOKUP)
    share = statistics.lookup_share
    return Regime(
        tokens=_mean(share, copied.tokens, none.tokens),
        seconds=_mean(share, copied.seconds, none.seconds),
        hit_rate=_mean(share, copied.hit_rate, none.hit_rate),
    )


def round_seconds(times: StepTimes, num_draft: int, kind: ProposalKind) -> float:
    """One row's round of ``ssd``: verification beside root pass and branches, whichever takes
    longer; drafts made just in time come before both."""
    ahead_s = times.draft_s + num_draft * times.branches_s
    if kind is ProposalKind.NONE:
        return max(times.verify_none_s, ahead_s)
    waited_s = num_draft * times.draft_s if kind is ProposalKind.JIT else 0.0
    return waited_s + max(times.verify_s, ahead_s)


def _mean(share: float, first: float, second: float) -> float:
    return share * first + (1 - share) * second
