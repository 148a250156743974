"""Choosing outcomes to prepare, against all other choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runtime.spec.fanout import covered, fan_out, geometric, power_law_ranks

shares = st.floats(0, 1, allow_nan=False, width=32)


def by_hand(accepted: np.ndarray, ranks: np.ndarray, counts: tuple[int, ...]) -> float:
    """The probability that one of the prepared outcomes comes true."""
    return float(sum(p * row[:n].sum() for p, row, n in zip(accepted, ranks, counts, strict=True)))


@given(arrays(np.float64, 3, elements=shares), arrays(np.float64, (3, 3), elements=shares))
def test_no_other_choice_of_as_many_outcomes_is_likelier(
    accepted: np.ndarray, ranks: np.ndarray
) -> None:
    ranks = -np.sort(-ranks, axis=1)  # better candidates first, as measured laws are
    for width in range(11):
        counts = fan_out(accepted, ranks, width)
        assert counts.sum() <= width
        best = max(
            by_hand(accepted, ranks, other)
            for other in itertools.product(range(4), repeat=3)
            if sum(other) <= width
        )
        assert by_hand(accepted, ranks, tuple(counts)) == pytest.approx(best)
        assert covered(accepted, ranks, counts) == pytest.approx(best)


def test_a_candidate_is_worth_no_more_than_those_before_it() -> None:
    """A noisy law may peak at rank 1. To prepare that candidate takes the one before it too, so
    the peak must not attract a width of one."""
    accepted, ranks = np.array([0.5, 0.5]), np.array([[0.1, 0.5], [0.2, 0.1]])
    assert fan_out(accepted, ranks, 1).tolist() == [0, 1]


def test_more_branches_than_candidates_prepare_them_all() -> None:
    assert fan_out(np.array([0.5, 0.5]), np.ones((2, 3)), 100).tolist() == [3, 3]


def test_equal_values_are_taken_from_the_left() -> None:
    assert fan_out(np.ones(3), np.ones((3, 2)), 3).tolist() == [2, 1, 0]


@given(st.floats(0, 1), st.integers(0, 12))
def test_the_geometric_law_is_a_law(alpha: float, num_draft: int) -> None:
    law = geometric(alpha, num_draft)
    assert law.shape == (num_draft + 1,)
    assert law.min() >= 0
    assert law.sum() == pytest.approx(1)


def test_the_geometric_law_by_hand() -> None:
    np.testing.assert_allclose(geometric(0.5, 2), [0.5, 0.25, 0.25])


@given(st.floats(0.1, 5), st.integers(1, 20))
def test_guesses_miss_by_the_power_law(exponent: float, num_ranks: int) -> None:
    ranks = power_law_ranks(exponent, num_ranks)
    assert (np.diff(ranks) <= 0).all()
    misses = 1 - np.cumsum(ranks)
    np.testing.assert_allclose(misses, np.arange(2.0, num_ranks + 2) ** -exponent, atol=1e-12)
