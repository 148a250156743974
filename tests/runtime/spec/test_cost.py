"""Predicted tokens a second, by hand and against the chain that the formula solves."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost import StepTimes, predict, tokens_per_round
from runtime.spec.statistics import OutcomeStatistics

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
    """Statistics whose laws are given: Pr(k) after K drafts, and one h(f) for every k."""

    accepted: list[float]
    ranks: list[float]

    @property
    def num_draft(self) -> int:
        return len(self.accepted) - 1

    def accepted_law(self, num_drafted: int) -> np.ndarray:
        return np.array(self.accepted if num_drafted else [1.0])

    def rank_law(self, num_drafted: int) -> np.ndarray:
        return np.tile(np.array(self.ranks), (num_drafted + 1, 1))


def rates(times: StepTimes, known: Known, width: int) -> dict[str, float]:
    return predict(times, known, width)  # type: ignore[arg-type]


def test_a_round_gives_its_accepted_tokens_and_the_bonus_token() -> None:
    assert tokens_per_round(np.array([0.0, 0.0, 1.0])) == 3
    assert tokens_per_round(np.array([0.5, 0.25, 0.25])) == 0.5 + 0.5 + 0.75


def test_plain_and_synchronous_decoding_by_hand() -> None:
    found = rates(TIMES, Known([0.5, 0.0, 0.5], [1.0, 0.0]), 3)
    assert found["ar"] == pytest.approx(100)
    assert found["sd"] == pytest.approx(2 / (0.012 + 2 * 0.002))


def test_a_perfect_draft_that_always_hits_costs_one_verification_a_round() -> None:
    perfect = Known([0.0, 0.0, 1.0], [1.0, 0.0])
    assert rates(TIMES, perfect, 1)["ssd"] == pytest.approx(3 / 0.020)


def test_a_draft_slower_than_the_target_sets_the_pace() -> None:
    perfect = Known([0.0, 0.0, 1.0], [1.0, 0.0])
    slow = replace(TIMES, branches_s=0.030)
    assert rates(slow, perfect, 1)["ssd"] == pytest.approx(3 / (0.002 + 2 * 0.030))


def test_a_draft_that_never_hits_gives_one_token_a_round_without_drafts() -> None:
    assert rates(TIMES, Known([1.0, 0.0, 0.0], [0.0, 0.0]), 4)["ssd"] == pytest.approx(1 / 0.016)


def test_nothing_prepared_never_hits() -> None:
    perfect = Known([0.0, 0.0, 1.0], [1.0, 0.0])
    assert rates(TIMES, perfect, 0)["ssd"] == pytest.approx(1 / 0.016)


@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.integers(1, 3))
def test_the_share_of_hits_is_that_of_the_two_state_chain(
    all_accepted: float, first: float, width: int
) -> None:
    """Rounds alternate between "hit" (K drafts) and "miss" (none); their long run share is
    found here by running the chain instead of solving it."""
    known = Known([1 - all_accepted, all_accepted], [first, 0.0])
    after_miss = first
    after_hit = first * (max(all_accepted, 1 - all_accepted) if width == 1 else 1)
    chain = np.array([[after_hit, 1 - after_hit], [after_miss, 1 - after_miss]])
    share, rest = np.linalg.matrix_power(chain, 4000)[0]
    tokens = share * (1 + all_accepted) + rest
    assert rates(TIMES, known, width)["ssd"] == pytest.approx(
        tokens / (share * 0.020 + rest * 0.016), rel=1e-6
    )


def test_more_branches_never_predict_less() -> None:
    """With equal step times; in truth a wider step takes longer, which the times say."""
    statistics = OutcomeStatistics(4, 16, (0.4, 0.2, 0.1, 0.05))
    found = [predict(TIMES, statistics, width)["ssd"] for width in range(17)]
    assert found == sorted(found)
    assert found[-1] > found[0]


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), 1e9])
def test_step_times_that_cannot_be_are_refused(seconds: float) -> None:
    """They are read back from a file of the user's; 0 was a division by zero."""
    with pytest.raises(ValueError, match="step times"):
        replace(TIMES, decode_s=seconds)
