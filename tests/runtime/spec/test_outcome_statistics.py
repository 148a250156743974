"""Laws learnt from rounds: where they start, what moves them, what must not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.fallback import ProposalKind
from runtime.spec.fanout import covered, fan_out, geometric
from runtime.spec.statistics import (
    DEFAULT_ALPHA,
    HALF_LIFE,
    LOOKUP_ALPHA,
    PLAN_EVERY,
    OutcomeStatistics,
)

K, F = 3, 4
FIGURES = (0.5, 0.2, 0.1, 0.05)
HIT, JIT, LOOKUP, NONE = ProposalKind


def observe(statistics: OutcomeStatistics, times: int = 1, **changes: object) -> None:
    seen: dict[str, object] = {
        "kind": HIT,
        "num_drafted": K,
        "accepted": K,
        "rank": 0,
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
            st.sampled_from(ProposalKind),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_laws_stay_laws_and_counts_add_up(rounds) -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    for drafted, share, rank, kind, hit in rounds:
        accepted = round(share * drafted)
        statistics.observe(
            kind=kind,
            num_drafted=drafted,
            accepted=accepted,
            rank=rank,
            hit=hit,
            predicted=0.25,
        )
    for kind in ProposalKind:
        for drafted in range(K + 1):
            assert statistics.accepted_law(drafted, kind).sum() == pytest.approx(1)
            assert statistics.rank_law(drafted, kind).sum(axis=1).max() <= 1 + 1e-12
            plan = statistics.plan(kind, drafted, 5)
            assert len(plan.counts) == drafted + 1
            assert sum(plan.counts) <= 5
            assert 0 <= plan.hit_rate <= 1 + 1e-12
        hits = [hit for *_, seen, hit in rounds if seen is kind]
        assert statistics.num_rounds[kind] == len(hits)
        assert statistics.num_hits[kind] == sum(hits)
        assert statistics.predicted_hits[kind] == 0.25 * len(hits)
    all_hits = [hit for *_, hit in rounds]
    assert statistics.hit_rate == (sum(all_hits) / len(rounds) if rounds else 0)


def test_many_rounds_outweigh_the_prior() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    for _ in range(1000):
        observe(statistics, 3, accepted=1, rank=2)
        observe(statistics, 1, accepted=K, rank=None)
    np.testing.assert_allclose(statistics.accepted_law(K), [0, 0.75, 0, 0.25], atol=0.02)
    laws = statistics.rank_law(K)
    np.testing.assert_allclose(laws[0], [0, 0, 1, 0], atol=0.02)
    np.testing.assert_allclose(laws[K], [0, 0, 0, 0], atol=0.03)


def test_old_rounds_are_forgotten_by_half_in_a_half_life() -> None:
    """The laws follow the text: after code came prose, and the figures of the code stayed."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    observe(statistics, 40 * HALF_LIFE, accepted=0)
    observe(statistics, HALF_LIFE, accepted=K)
    law = statistics.accepted_law(K)
    # Equal weights but for the prior, of whose 8 rounds the mass is elsewhere.
    assert law[0] == pytest.approx(law[K], abs=0.005)
    observe(statistics, 20 * HALF_LIFE, accepted=K)
    assert statistics.accepted_law(K)[K] > 0.98


def test_the_prior_is_not_forgotten() -> None:
    """An outcome that was not seen for long stays possible, and worth a branch at some width."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    observe(statistics, 30 * HALF_LIFE, accepted=0)
    assert statistics.accepted_law(K).min() > 1e-4


def test_ten_thousand_half_lives_do_not_overflow() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    histogram = statistics._accepted[HIT, K]
    histogram._weight = 1e99
    histogram._counts[:] = 3e99, 1e99, 0, 0
    before = statistics.accepted_law(K)
    observe(statistics, 5 * HALF_LIFE, accepted=0)
    assert np.isfinite(statistics.accepted_law(K)).all()
    assert histogram._weight < 1e98, "the weights must have been brought down"
    assert statistics.accepted_law(K)[0] > before[0]


def test_rounds_with_and_without_drafts_are_counted_apart() -> None:
    """A miss drafts nothing and accepts nothing: that must not look like K rejected drafts."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    before = statistics.accepted_law(K)
    observe(statistics, 100, kind=NONE, num_drafted=0, accepted=0)
    np.testing.assert_array_equal(statistics.accepted_law(K), before)
    np.testing.assert_array_equal(statistics.accepted_law(0), [1.0])


@pytest.mark.parametrize(
    ("changes", "moved", "kept"),
    [
        ({"accepted": 1, "rank": 3}, slice(0, K), slice(K, None)),
        ({"accepted": K, "rank": 3}, slice(K, None), slice(0, K)),
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


@pytest.mark.parametrize("kind", ProposalKind)
def test_each_kind_of_proposal_has_laws_of_its_own(kind) -> None:
    """Copied tokens are accepted all or none, drafts from a miss are in a harder place: mixing
    them would plan for neither."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    others = [other for other in ProposalKind if other is not kind]
    laws = [(statistics.accepted_law(2, other), statistics.rank_law(2, other)) for other in others]
    own = statistics.accepted_law(2, kind)
    observe(statistics, 50, kind=kind, num_drafted=2, accepted=1, rank=3)
    assert statistics.accepted_law(2, kind)[1] > own[1]
    for other, (accepted, ranks) in zip(others, laws, strict=True):
        np.testing.assert_array_equal(statistics.accepted_law(2, other), accepted)
        np.testing.assert_array_equal(statistics.rank_law(2, other), ranks)


def test_a_rejected_copy_leaves_the_drafts_first_choice_in_the_race() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    np.testing.assert_allclose(statistics.rank_law(K, LOOKUP), [FIGURES] * (K + 1))
    np.testing.assert_allclose(statistics.accepted_law(K, LOOKUP), geometric(LOOKUP_ALPHA, K))


def test_the_kind_left_out_is_hit_with_drafts_and_none_without() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    observe(statistics, 9, kind=HIT, accepted=2, rank=1)
    observe(statistics, 9, kind=NONE, num_drafted=0, accepted=0, rank=3)
    for drafted, kind in ((K, HIT), (0, NONE)):
        np.testing.assert_array_equal(
            statistics.rank_law(drafted), statistics.rank_law(drafted, kind)
        )
        np.testing.assert_array_equal(
            statistics.accepted_law(drafted), statistics.accepted_law(drafted, kind)
        )


# --- plans ---


def test_a_plan_is_the_best_fan_out_and_its_probability() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    observe(statistics, 30, kind=JIT, accepted=1, rank=1)
    for kind in ProposalKind:
        plan = statistics.plan(kind, K, 6)
        law, ranks = statistics.accepted_law(K, kind), statistics.rank_law(K, kind)
        counts = fan_out(law, ranks, 6)
        assert plan.counts == tuple(counts.tolist())
        assert plan.hit_rate == pytest.approx(covered(law, ranks, counts))
        assert statistics.predicted_hit_rate(kind, 6, K) == plan.hit_rate


def test_the_predicted_hit_rate_is_that_of_the_usual_length() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    assert statistics.predicted_hit_rate(HIT, 4) == statistics.plan(HIT, K, 4).hit_rate
    assert statistics.predicted_hit_rate(NONE, 4) == statistics.plan(NONE, 0, 4).hit_rate
    assert statistics.predicted_hit_rate(NONE, 2) == pytest.approx(0.7)


def test_plans_follow_what_is_observed_within_a_few_rounds() -> None:
    """A plan is kept for some rounds, for its cost; kept for ever it would never learn."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    first = statistics.plan(HIT, K, 4)
    observe(statistics, PLAN_EVERY - 1, accepted=0, rank=0)
    assert statistics.plan(HIT, K, 4) is first
    observe(statistics, accepted=0, rank=0)
    assert statistics.plan(HIT, K, 4).hit_rate > first.hit_rate
    observe(statistics, 50 * PLAN_EVERY, accepted=K, rank=F - 1)
    assert statistics.plan(HIT, K, 4).counts[K] > first.counts[K]


def test_a_round_of_many_rows_is_one_round() -> None:
    """Plans were made anew twice a round of sixteen rows, which took as long as drafting."""
    statistics = OutcomeStatistics(K, F, FIGURES)
    first = statistics.plan(HIT, K, 4)
    for _ in range(PLAN_EVERY - 1):
        observe(statistics, 15, accepted=0, rank=0, ends_round=False)
        observe(statistics, accepted=0, rank=0)
    assert statistics.plan(HIT, K, 4) is first
    observe(statistics, accepted=0, rank=0)
    assert statistics.plan(HIT, K, 4) is not first


def test_predictions_come_true_where_rounds_follow_one_law() -> None:
    """The observed hit rate lies within 5 standard deviations of the predicted one."""
    random = np.random.default_rng(3)
    law, ranks = np.array([0.5, 0.1, 0.1, 0.3]), np.array([0.4, 0.3, 0.1, 0.05, 0.15])
    statistics = OutcomeStatistics(K, F, FIGURES)
    for number in range(6000):
        plan = statistics.plan(HIT, K, 5)
        accepted, rank = random.choice(4, p=law), int(random.choice(5, p=ranks))
        if number >= 2000:  # once the laws are learnt
            observe(
                statistics,
                accepted=accepted,
                rank=rank,
                hit=rank < plan.counts[accepted],
                predicted=plan.hit_rate,
            )
        else:
            observe(statistics, accepted=accepted, rank=rank, hit=False)
    rounds = statistics.num_rounds[HIT] - 2000
    rates = [counts[HIT] / rounds for counts in (statistics.num_hits, statistics.predicted_hits)]
    assert abs(rates[0] - rates[1]) < 5 * (0.25 / rounds) ** 0.5, rates


def test_the_share_of_lookups_is_learnt_from_the_rounds_after_misses() -> None:
    statistics = OutcomeStatistics(K, F, FIGURES)
    assert 0 < statistics.lookup_share < 1
    observe(statistics, 300, kind=LOOKUP, accepted=0)
    observe(statistics, 100, kind=NONE, num_drafted=0, accepted=0)
    observe(statistics, 500, kind=HIT)
    assert statistics.lookup_share == pytest.approx(0.75, abs=0.02)
