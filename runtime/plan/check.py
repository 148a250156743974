"""The cost model against the very rounds it learnt from: what a log shows, what is predicted."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.spec.cost.laws import Laws
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.outcome_log import OutcomeLog
from runtime.spec.plan import RoundPlan

_ANY = ByTokens((1,), (1.0,))
"""Tokens and hits of one text do not depend on times."""


@dataclass(frozen=True, slots=True)
class LogCheck:
    """Tokens a round and hit rate at the log's own setting, as logged and as predicted; hit rates
    are None where the log's mode prepares nothing."""

    tokens_round: float
    predicted_tokens_round: float
    hit_rate: float | None
    predicted_hit_rate: float | None


def check(log: OutcomeLog, laws: Laws) -> LogCheck | None:
    """Compare; None for a log whose setting is not one of the model's."""
    plan = _plan(log)
    if plan is None:
        return None
    found = predict(PairTimes.apart(_ANY, _ANY), laws, 1, plan)
    known = [each.hit for each in log.rounds if each.hit is not None]
    return LogCheck(
        tokens_round=sum(each.accepted + 1 for each in log.rounds) / len(log.rounds),
        predicted_tokens_round=found.tokens_round,
        hit_rate=sum(known) / len(known) if known and found.hit_rate is not None else None,
        predicted_hit_rate=found.hit_rate,
    )


def _plan(log: OutcomeLog) -> RoundPlan | None:
    header = log.header
    if header.mode == "sd":
        return RoundPlan("sd", header.num_draft)
    fallbacks = [each for each in Fallback if each.value == header.fallback]
    if header.mode != "ssd" or not fallbacks or not header.num_branches:
        return None
    return RoundPlan("ssd", header.num_draft, header.num_branches, fallbacks[0])
