"""The model must say of a log what the log says of itself."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.plan.check import check
from runtime.spec.cost.laws import laws_of_acceptance, laws_of_log
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound, LogHeader, OutcomeLog

NUM_RANKS, K, W = 8, 3, 8


def played(num: int = 6000) -> OutcomeLog:
    """Rounds of ``ssd`` with zero drafts after a miss, drawn from a known law."""
    random = np.random.default_rng(3)
    laws = laws_of_acceptance(0.7, 1.2, NUM_RANKS)
    rounds: list[LoggedRound] = []
    kind = ProposalKind.NONE
    for _ in range(num):
        law = laws.kinds[kind]
        drafted = K if kind is ProposalKind.HIT else 0
        accepted = 0
        while accepted < drafted and random.random() < 0.7:
            accepted += 1
        rank = int(np.searchsorted(law.bonus.cumsum(), random.random()))
        hit = rank < law.fan_out(drafted, W)[accepted]
        noted = rank if rank < NUM_RANKS else None
        rounds.append(LoggedRound(0, kind, drafted, accepted, noted, hit))
        kind = ProposalKind.HIT if hit else ProposalKind.NONE
    return OutcomeLog(LogHeader("", "ssd", K, NUM_RANKS, W, "zero"), tuple(rounds))


def test_what_is_predicted_is_what_was_logged() -> None:
    log = played()
    found = check(log, laws_of_log(log))
    assert found is not None
    assert found.predicted_tokens_round == pytest.approx(found.tokens_round, rel=0.02)
    assert found.hit_rate is not None
    assert found.predicted_hit_rate == pytest.approx(found.hit_rate, abs=0.02)


def test_a_model_of_other_texts_is_found_out() -> None:
    log = played()
    found = check(log, laws_of_acceptance(0.2))
    assert found is not None
    assert found.predicted_tokens_round < 0.8 * found.tokens_round


def test_sd_prepares_nothing() -> None:
    rounds = (LoggedRound(0, ProposalKind.JIT, K, 1, None, None),) * 50
    log = OutcomeLog(LogHeader("", "sd", K, 0), rounds)
    found = check(log, laws_of_log(log))
    assert found is not None
    assert found.tokens_round == 2.0
    assert found.hit_rate is found.predicted_hit_rate is None


@pytest.mark.parametrize(
    "header",
    [
        LogHeader("", "auto", K, NUM_RANKS, W, "zero"),
        LogHeader("", "ssd", K, NUM_RANKS, W, "auto"),
        LogHeader("", "ssd", K, NUM_RANKS, 0, "zero"),
    ],
)
def test_rounds_of_several_settings_are_not_compared(header: LogHeader) -> None:
    log = OutcomeLog(header, played(50).rounds)
    assert check(log, laws_of_acceptance(0.5)) is None
