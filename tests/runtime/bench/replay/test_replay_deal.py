"""Dealing outcomes: in a law's proportions, by where drafts came from, the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.replay.deal import STRATA, Dealer, Deck, joint_law
from runtime.spec.cost.laws import KindLaw, Laws
from runtime.spec.fallback import ProposalKind

HIT = KindLaw(np.array([0.9, 0.8]), np.array([0.6, 0.3]), np.array([0.5, 0.2, 0.1]))
JIT = KindLaw(np.array([0.5, 0.5]), np.array([0.1]), np.array([0.2]))
LAWS = Laws({kind: HIT if kind is ProposalKind.HIT else JIT for kind in ProposalKind})


def test_the_joint_law_has_the_law_s_marginals() -> None:
    joint = joint_law(HIT, 2, 3)
    np.testing.assert_allclose(joint.sum(axis=1), [0.1, 0.18, 0.72])
    np.testing.assert_allclose(joint[1] / 0.18, [0.6, 0.3, 0.0, 0.1])
    np.testing.assert_allclose(joint[2] / 0.72, [0.5, 0.2, 0.1, 0.2])


def test_ranks_that_are_not_told_apart_are_beyond_all() -> None:
    np.testing.assert_allclose(joint_law(HIT, 0, 1), [[0.5, 0.5]])


@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0.01, 1), min_size=2, max_size=12))
def test_each_deck_has_the_law_s_proportions(seed: int, weights: list[float]) -> None:
    """A short run would else measure its own luck, and no 3 % could be asked for."""
    joint = np.array([weights]) / sum(weights)
    deck = Deck(joint, np.random.default_rng(seed))
    for _ in range(2):
        ranks = [deck.draw()[1] for _ in range(STRATA)]
        for rank, share in enumerate(joint[0]):
            place = None if rank == joint.shape[1] - 1 else rank
            assert abs(ranks.count(place) - share * STRATA) <= 2


def test_the_order_is_random_and_the_seed_s_own() -> None:
    def dealt(seed: int) -> list[tuple[int, int | None]]:
        dealer = Dealer(LAWS, 3, seed)
        return [dealer.draw(2, ahead=True) for _ in range(50)]

    assert dealt(1) == dealt(1)
    assert dealt(1) != dealt(2)


@pytest.mark.parametrize(
    ("num_drafted", "ahead", "expected"),
    [(2, True, 0.72), (2, False, 0.25), (1, True, 0.9), (1, False, 0.5), (0, False, 1.0)],
)
def test_drafts_are_accepted_by_the_law_of_their_kind(num_drafted, ahead, expected) -> None:
    dealer = Dealer(LAWS, 3, 5)
    drawn = [dealer.draw(num_drafted, ahead=ahead)[0] for _ in range(4 * STRATA)]
    share = drawn.count(num_drafted) / len(drawn)
    assert share == pytest.approx(expected, abs=2 / STRATA)
