"""Laws learnt from rounds: where they start, what moves them, what must not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.fanout import geometric
from runtime.spec.statistics import DEFAULT_ALPHA, OutcomeStatistics

K, F = 3, 4
FIGURES = (0.5, 0.2, 0.1, 0.05)


def observe(statistics: OutcomeStatistics, times: int = 1, **changes: object) -> None:
    seen: dict[str, object] = {
        "num_drafted": K,
        "accepted": K,
        "rank": 0,
        "after_hit": True,
        "hit": True,
    }
    for _ in range(times):
        statistics.observe(**{**seen, **changes})  # type: ignore[arg-type]


def test_the_makers_figures_are_the_laws_to_start_from() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    np.testing.assert_allclose(statistics.accepted_law(K), geometric(0.5, K))
    laws = statistics.rank_law(K)
    np.testing.assert_allclose(laws[K], FIGURES)
    # Once the draft's first choice was rejected, the others share what it leaves.
    np.testing.assert_allclose(laws[0], [0.4, 0.2, 0.1, 0.05])


def test_without_figures_the_prior_is_the_default() -> None:
    statistics = OutcomeStatistics(K, F)
    np.testing.assert_allclose(statistics.accepted_law(K), geometric(DEFAULT_ALPHA, K))
    assert (np.diff(statistics.rank_law(K), axis=1) < 0).all()


@pytest.mark.parametrize("figures", [FIGURES, (0.9,), (1.0, 0.0), (0.0, 0.0), ()])
@pytest.mark.parametrize("num_ranks", [1, 4, 9])
def test_any_figures_give_laws(figures: tuple[float, ...], num_ranks: int) -> None:
    """The figures may be longer or shorter than the candidates, perfect or useless."""
    statistics = OutcomeStatistics(K, num_ranks, figures)
    for drafted in range(K + 1):
        accepted, ranks = statistics.accepted_law(drafted), statistics.rank_law(drafted)
        assert accepted.shape == (drafted + 1,)
        assert accepted.sum() == pytest.approx(1)
        assert ranks.shape == (drafted + 1, num_ranks)
        assert ranks.min() >= 0
        assert ranks.sum(axis=1).max() <= 1 + 1e-12


@given(
    st.lists(
        st.tuples(
            st.integers(0, K),
            st.floats(0, 1),
            st.one_of(st.none(), st.integers(0, F - 1)),
            st.booleans(),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_laws_stay_laws_and_counts_add_up(rounds) -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    for drafted, share, rank, after_hit, hit in rounds:
        accepted = round(share * drafted)
        statistics.observe(
            num_drafted=drafted, accepted=accepted, rank=rank, after_hit=after_hit, hit=hit
        )
    for drafted in range(K + 1):
        assert statistics.accepted_law(drafted).sum() == pytest.approx(1)
        assert statistics.rank_law(drafted).sum(axis=1).max() <= 1 + 1e-12
    assert sum(statistics.num_rounds.values()) == len(rounds)
    hits = sum(hit for *_, hit in rounds)
    assert statistics.hit_rate == (hits / len(rounds) if rounds else 0)
    assert statistics.num_hits[True] == sum(hit for *_, after, hit in rounds if after)


def test_many_rounds_outweigh_the_prior() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    observe(statistics, 3000, accepted=1, rank=2)
    observe(statistics, 1000, accepted=K, rank=None)
    np.testing.assert_allclose(statistics.accepted_law(K), [0, 0.75, 0, 0.25], atol=0.01)
    laws = statistics.rank_law(K)
    np.testing.assert_allclose(laws[0], [0, 0, 1, 0], atol=0.01)
    np.testing.assert_allclose(laws[K], [0, 0, 0, 0], atol=0.01)


def test_rounds_with_and_without_drafts_are_counted_apart() -> None:
    """A miss drafts nothing and accepts nothing: that must not look like K rejected drafts."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    before = statistics.accepted_law(K)
    observe(statistics, 100, num_drafted=0, accepted=0)
    np.testing.assert_array_equal(statistics.accepted_law(K), before)
    np.testing.assert_array_equal(statistics.accepted_law(0), [1.0])


@pytest.mark.parametrize(
    ("changes", "moved", "kept"),
    [
        ({"accepted": 1, "rank": 3}, slice(0, K), slice(K, None)),
        ({"accepted": K, "rank": 3}, slice(K, None), slice(0, K)),
        ({"num_drafted": 0, "accepted": 0, "rank": 3}, slice(K, None), slice(0, K)),
    ],
)
def test_ranks_after_a_rejection_are_counted_apart(changes, moved, kept) -> None:
    """Where a draft was rejected its own first choice is out of the race; elsewhere it leads."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    before = statistics.rank_law(K)
    observe(statistics, 100, **changes)
    after = statistics.rank_law(K)
    np.testing.assert_array_equal(after[kept], before[kept])
    assert (after[moved, 3] > 0.8).all()


@pytest.mark.parametrize("rank", [None, F, F + 5])
def test_a_bonus_token_beyond_the_candidates_speaks_against_all_of_them(rank) -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    before = statistics.rank_law(K)
    observe(statistics, rank=rank)
    assert (statistics.rank_law(K)[K] < before[K]).all()
