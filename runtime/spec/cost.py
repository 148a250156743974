"""What a mode would yield, from measured step times and an acceptance law.

Theorem 7 of arXiv 2603.03251, with measured laws in place of its parameters.

Tokens a second = tokens a round / seconds a round. Seconds are those of one row's round.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from runtime.spec.fanout import fan_out
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


def tokens_per_round(law: np.ndarray) -> float:
    """Expected emitted tokens, bonus included, under the accepted-count law Pr(k) [K + 1]."""
    return float(law @ np.arange(1, len(law) + 1))


def predict(times: StepTimes, statistics: OutcomeStatistics, width: int) -> dict[str, float]:
    """Predicted tokens a second of ``ar``, ``sd`` and ``ssd`` (zero drafts on a miss).

    ssd alternates between rounds after a hit (K drafts) and after a miss (none): a two-state
    chain whose share of hits is p_b / (1 - p_p + p_b), p_p and p_b the hit rates of the two.
    """
    num_draft = statistics.num_draft
    law = statistics.accepted_law(num_draft)
    hit_after_hit, hit_after_miss = (
        _hit_rate(statistics, drafted, width) for drafted in (num_draft, 0)
    )
    share = hit_after_miss / max(1e-9, 1 - hit_after_hit + hit_after_miss)
    draft_s = times.draft_s + num_draft * times.branches_s
    seconds = share * max(times.verify_s, draft_s) + (1 - share) * max(times.verify_none_s, draft_s)
    tokens = share * tokens_per_round(law) + (1 - share)
    return {
        "ar": 1 / times.decode_s,
        "sd": tokens_per_round(law) / (times.verify_all_s + num_draft * times.draft_s),
        "ssd": tokens / seconds,
    }


def _hit_rate(statistics: OutcomeStatistics, num_drafted: int, width: int) -> float:
    law, ranks = statistics.accepted_law(num_drafted), statistics.rank_law(num_drafted)
    counts = fan_out(law, ranks, width)
    within = np.arange(ranks.shape[1])[None, :] < counts[:, None]
    return float(np.sum(law[:, None] * ranks * within))
