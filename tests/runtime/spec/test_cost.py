"""Predicted tokens a second, by hand and against the chain that the formula solves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost import (
    Regime,
    StepTimes,
    best_fallback,
    hit_share,
    miss_regime,
    predict,
    regime,
    ssd_rate,
    tokens_per_round,
)
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.fanout import covered, fan_out
from runtime.spec.statistics import OutcomeStatistics, Plan

TIMES = StepTimes(
    decode_s=0.010,
    verify_all_s=0.012,
    verify_s=0.020,
    verify_none_s=0.016,
    draft_s=0.002,
    branches_s=0.003,
)


@dataclass
class Known:
    """Statistics whose laws are given: Pr(k) after K drafts of any kind but a copy's, and one h(f)
    for every k."""

    accepted: list[float]
    ranks: list[float]
    copied: list[float] | None = None
    lookup_share: float = 0.0

    @property
    def num_draft(self) -> int:
        return len(self.accepted) - 1

    def accepted_law(self, num_drafted: int, kind: ProposalKind | None = None) -> np.ndarray:
        law = self.copied if kind is ProposalKind.LOOKUP else self.accepted
        return np.array(law if num_drafted else [1.0])

    def plan(self, kind: ProposalKind, num_drafted: int, width: int) -> Plan:
        law = self.accepted_law(num_drafted, kind)
        ranks = np.tile(np.array(self.ranks), (num_drafted + 1, 1))
        counts = fan_out(law, ranks, width)
        return Plan(tuple(counts.tolist()), covered(law, ranks, counts))


def rates(times: StepTimes, known: Known, width: int, fallback=Fallback.ZERO) -> dict[str, float]:
    return predict(times, known, width, fallback)  # type: ignore[arg-type]


PERFECT = Known([0.0, 0.0, 1.0], [1.0, 0.0])


def test_a_round_gives_its_accepted_tokens_and_the_bonus_token() -> None:
    assert tokens_per_round(np.array([0.0, 0.0, 1.0])) == 3
    assert tokens_per_round(np.array([0.5, 0.25, 0.25])) == 0.5 + 0.5 + 0.75


def test_plain_and_synchronous_decoding_by_hand() -> None:
    found = rates(TIMES, Known([0.5, 0.0, 0.5], [1.0, 0.0]), 3)
    assert found["ar"] == pytest.approx(100)
    assert found["sd"] == pytest.approx(2 / (0.012 + 2 * 0.002))


def test_a_perfect_draft_that_always_hits_costs_one_verification_a_round() -> None:
    assert rates(TIMES, PERFECT, 1)["ssd"] == pytest.approx(3 / 0.020)


def test_a_draft_slower_than_the_target_sets_the_pace() -> None:
    slow = replace(TIMES, branches_s=0.030)
    assert rates(slow, PERFECT, 1)["ssd"] == pytest.approx(3 / (0.002 + 2 * 0.030))


def test_a_draft_that_never_hits_gives_one_token_a_round_without_drafts() -> None:
    assert rates(TIMES, Known([1.0, 0.0, 0.0], [0.0, 0.0]), 4)["ssd"] == pytest.approx(1 / 0.016)


def test_nothing_prepared_never_hits() -> None:
    assert rates(TIMES, PERFECT, 0)["ssd"] == pytest.approx(1 / 0.016)


regimes = st.builds(
    Regime,
    tokens=st.floats(1, 9),
    seconds=st.floats(1e-3, 1),
    hit_rate=st.floats(0.05, 0.95),
)


@given(after_hit=regimes, after_miss=regimes)
def test_the_share_of_hits_is_that_of_the_two_state_chain(after_hit, after_miss) -> None:
    """Their long run share is found here by running the chain instead of solving it."""
    chain = np.array([[state.hit_rate, 1 - state.hit_rate] for state in (after_hit, after_miss)])
    share, rest = np.linalg.matrix_power(chain, 4000)[0]
    assert hit_share(after_hit, after_miss) == pytest.approx(share, rel=1e-6)
    tokens = share * after_hit.tokens + rest * after_miss.tokens
    seconds = share * after_hit.seconds + rest * after_miss.seconds
    assert ssd_rate(after_hit, after_miss) == pytest.approx(tokens / seconds, rel=1e-6)


def test_hits_and_misses_alternate_by_hand() -> None:
    """Half of all rounds after a hit hit again, and nine of ten after a miss."""
    known = Known([0.5, 0.5], [0.9, 0.0])
    after_hit, after_none = (
        regime(TIMES, known, 1, kind)  # type: ignore[arg-type]
        for kind in (ProposalKind.HIT, ProposalKind.NONE)
    )
    assert (after_hit.hit_rate, after_none.hit_rate) == (pytest.approx(0.45), pytest.approx(0.9))
    share = 0.9 / (1 - 0.45 + 0.9)
    expected = (share * 1.5 + 1 - share) / (share * 0.020 + (1 - share) * 0.016)
    assert rates(TIMES, known, 1)["ssd"] == pytest.approx(expected)


# --- fallbacks ---


def test_drafts_made_just_in_time_by_hand() -> None:
    """Each round has K drafts; one that missed has waited for them."""
    known = Known([0.5, 0.0, 0.5], [0.0])
    assert rates(TIMES, known, 4, Fallback.JIT)["ssd"] == pytest.approx(2 / (0.020 + 2 * 0.002))


def test_lookups_by_hand() -> None:
    """A quarter of the misses finds something to copy, and 1 of 2 tokens of it stands."""
    known = Known([1.0, 0.0, 0.0], [0.0], copied=[0.0, 1.0, 0.0], lookup_share=0.25)
    found = rates(TIMES, known, 4, Fallback.LOOKUP)["ssd"]
    assert found == pytest.approx((0.25 * 2 + 0.75) / (0.25 * 0.020 + 0.75 * 0.016))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_lookups_that_never_or_always_find_something(share: float) -> None:
    known = Known([0.5, 0.5, 0.0], [0.5, 0.3], copied=[0.2, 0.8, 0.0], lookup_share=share)
    found = miss_regime(TIMES, known, 3, Fallback.LOOKUP)  # type: ignore[arg-type]
    kind = ProposalKind.LOOKUP if share else ProposalKind.NONE
    assert found == regime(TIMES, known, 3, kind)  # type: ignore[arg-type]


def test_the_best_fallback_is_the_fastest_by_its_own_statistics() -> None:
    def best(times: StepTimes, known: Known, *names: Fallback) -> Fallback:
        seen = dict.fromkeys(names or Fallback, known)
        return best_fallback(times, seen, 3)  # type: ignore[arg-type]

    bad_copies = {"copied": [1.0, 0.0, 0.0], "lookup_share": 0.5}
    good, bad = (
        Known([0.1, 0.1, 0.8], [0.5], **bad_copies),
        Known([0.9, 0.1, 0], [0.5], **bad_copies),
    )
    assert best(TIMES, good) is Fallback.JIT
    assert best(TIMES, bad) is Fallback.ZERO
    dear = replace(TIMES, draft_s=0.040, branches_s=0.001)
    assert best(dear, good) is Fallback.ZERO
    copies = replace(bad, copied=[0.0, 0.0, 1.0])
    assert best(TIMES, copies) is Fallback.LOOKUP
    assert best(TIMES, copies, Fallback.ZERO, Fallback.JIT) is Fallback.ZERO


def test_more_branches_never_predict_less() -> None:
    """With equal step times; in truth a wider step takes longer, which the times say."""
    statistics = OutcomeStatistics(4, 16, (0.4, 0.2, 0.1, 0.05))
    for fallback in Fallback:
        found = [predict(TIMES, statistics, width, fallback)["ssd"] for width in range(17)]
        assert found == sorted(found) or fallback is not Fallback.ZERO
        assert found[-1] > found[0]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), 1e9])
def test_step_times_that_cannot_be_are_refused(seconds: float) -> None:
    """They are read back from a file of the user's; 0 was a division by zero."""
    with pytest.raises(ValueError, match="step times"):
        replace(TIMES, decode_s=seconds)
