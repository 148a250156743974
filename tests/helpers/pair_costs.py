"""Pairs by what their calls take and how often their drafts are accepted, and their speed."""

from __future__ import annotations

import numpy as np

from runtime.spec.cost.laws import KindLaw, Laws
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.times import ByTokens, Grid, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import RoundPlan

ZERO, JIT, LOOKUP = Fallback.ZERO, Fallback.JIT, Fallback.LOOKUP


def constant(target_s: float, draft_s: float, exchange_s: float = 0.0) -> PairTimes:
    """Calls that take the same whatever their shape."""
    return PairTimes.apart(ByTokens((1,), (target_s,)), ByTokens((1,), (draft_s,)), exchange_s)


CURVED = PairTimes(
    target=ByTokens((1, 64), (0.010, 0.020)),
    target_beside=ByTokens((1, 64), (0.012, 0.026)),
    draft=Grid((1, 8), (1, 16), ((0.001, 0.002), (0.002, 0.006))),
    draft_beside=Grid((1, 8), (1, 16), ((0.0012, 0.0022), (0.0025, 0.007))),
    exchange_s=0.0003,
    ahead_s=0.0008,
    again_s=0.0001,
)
RANKS = np.array([0.4, 0.2, 0.1, 0.05])
MIXED = Laws(
    {
        ProposalKind.HIT: KindLaw(np.array([0.8, 0.7, 0.75]), RANKS, RANKS * 1.3),
        ProposalKind.JIT: KindLaw(np.array([0.7, 0.7, 0.7]), RANKS, RANKS * 1.2),
        ProposalKind.LOOKUP: KindLaw(np.array([0.5, 0.9, 0.9]), RANKS * 0.8, RANKS),
        ProposalKind.NONE: KindLaw(np.zeros(0), RANKS, RANKS),
    },
    lookup_share=0.3,
)


def ssd(num_draft: int, width: int, fallback: Fallback) -> RoundPlan:
    return RoundPlan("ssd", num_draft, width, fallback)


def speed(times: PairTimes, laws: Laws, plan: RoundPlan, batch: int = 1) -> float:
    """Predicted tokens per second of the whole batch."""
    return predict(times, laws, batch, plan).tokens_s
