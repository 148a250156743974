"""What a mode would yield, from measured step times and an acceptance law (``ssd.md`` section 2.2).

Tokens a second = tokens a round / seconds a round. Seconds are those of one row's round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.spec.fanout import fan_out
from runtime.spec.statistics import OutcomeStatistics


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one call: plain decoding step, verification of K drafts and of none with the
    draft beside it, verification with all cores, one draft token, one step of all branches.
    """

    decode_s: float
    verify_all_s: float
    verify_s: float
    verify_none_s: float
    draft_s: float
    branches_s: float


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
