"""What is expected of the next rounds: calibration, the long memory, the last sentences."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.spec.controller.laws import FAST, RecentLaws
from runtime.spec.cost import KindLaw, Laws, laws_of_acceptance
from runtime.spec.fallback import ProposalKind

HIT, JIT, LOOKUP, NONE = (
    ProposalKind.HIT,
    ProposalKind.JIT,
    ProposalKind.LOOKUP,
    ProposalKind.NONE,
)


def recent(acceptance: float = 0.5, num_draft: int = 4) -> RecentLaws:
    return RecentLaws(laws_of_acceptance(acceptance, num_ranks=8), num_draft)


def passing(laws: RecentLaws, kind: ProposalKind = JIT) -> list[float]:
    return laws.now().kinds[kind].accept.tolist()


def test_calibration_is_all_there_is_at_first() -> None:
    laws = recent(0.37)
    assert passing(laws) == pytest.approx([0.37] * 4)
    prior = laws_of_acceptance(0.37, num_ranks=8).kinds[HIT]
    assert laws.now().kinds[HIT].bonus == pytest.approx(prior.bonus)
    assert laws.acceptance == pytest.approx(0.37)


def test_a_few_sentences_outweigh_it() -> None:
    laws = recent(0.05)
    for _ in range(60):
        laws.see(JIT, 4, 4)
    assert min(passing(laws)) > 0.75


def test_what_was_long_ago_does_not_hide_a_change() -> None:
    laws = recent(0.5)
    for _ in range(1000):
        laws.see(JIT, 4, 0)
    assert passing(laws)[0] < 0.05
    for _ in range(48):
        laws.see(JIT, 4, 4)
    assert passing(laws)[0] > 0.6


def test_drafts_of_both_sorts_show_how_hard_the_text_is_now() -> None:
    """In sd nothing is prepared, yet ssd must be judged by it."""
    laws = recent(0.5)
    for _ in range(40):
        laws.see(JIT, 4, 4)
    assert passing(laws, HIT)[0] > 0.75
    assert passing(laws, LOOKUP)[0] == pytest.approx(0.5)


def test_copied_tokens_say_nothing_about_the_draft() -> None:
    laws = recent(0.5)
    for _ in range(40):
        laws.see(LOOKUP, 4, 4)
    assert passing(laws, LOOKUP)[0] > 0.75
    assert passing(laws, JIT) == pytest.approx([0.5] * 4)


def test_places_that_were_not_tried_follow_the_others() -> None:
    """K stayed at 1 for good where calibration had been wrong: the second place's old figure
    said that a second draft would not pay."""
    laws = recent(0.05)
    for _ in range(100):
        laws.see(JIT, 1, 1)
    assert passing(laws)[1] > 0.5
    for _ in range(40):
        laws.see(JIT, 2, 1)
    assert passing(laws)[1] < 0.35


def test_only_places_that_were_judged_are_counted() -> None:
    """Behind a rejection nothing is known."""
    laws = recent(0.5)
    for _ in range(60):
        laws.see(HIT, 4, 1)
    first, second, third, _ = passing(laws, HIT)
    assert first > 0.7
    assert second < 0.3
    assert second < third < first


def test_a_pause_makes_what_was_seen_lately_old() -> None:
    laws = recent(0.9)
    for _ in range(20):
        laws.see(JIT, 1, 0)
    before = passing(laws)[0]
    laws.fade(8 * FAST)
    assert passing(laws)[0] > before + 0.1


def test_ranks_are_learnt_after_rejections_and_after_all_accepted_apart() -> None:
    laws = recent()
    for _ in range(60):
        laws.see_rank(HIT, 0, all_accepted=False)
        laws.see_rank(HIT, None, all_accepted=True)
    law = laws.now().kinds[HIT]
    assert law.rejected[0] > 0.8
    assert law.bonus.sum() < 0.2


def test_a_rank_beyond_those_told_apart_is_none_of_them() -> None:
    laws = recent()
    for _ in range(60):
        laws.see_rank(JIT, 100, all_accepted=True)
    assert laws.now().kinds[JIT].bonus.sum() < 0.2


def test_first_candidates_show_the_draft_where_it_drafted_nothing() -> None:
    """A pair whose outcomes are never prepared would not learn how good its drafts are."""
    laws = recent(0.1)
    for _ in range(40):
        laws.see_rank(NONE, 0, all_accepted=True)
    assert passing(laws, JIT)[0] > 0.5


def test_what_there_is_to_copy_is_counted() -> None:
    laws = recent()
    share = laws.now().lookup_share
    for _ in range(50):
        laws.see_copy(is_found=True)
    assert laws.now().lookup_share > share + 0.5


def test_laws_are_probabilities_whatever_was_seen() -> None:
    random = np.random.default_rng(4)
    laws = recent(0.4)
    for _ in range(300):
        kind = (HIT, JIT, LOOKUP, NONE)[random.integers(4)]
        drafted = 0 if kind is NONE else int(random.integers(1, 5))
        accepted = int(random.integers(drafted + 1))
        laws.see(kind, drafted, accepted)
        rank = int(random.integers(9))
        laws.see_rank(kind, rank if rank < 8 else None, all_accepted=accepted == drafted)
    for law in laws.now().kinds.values():
        assert isinstance(law, KindLaw)
        assert ((law.accept >= 0) & (law.accept <= 1)).all()
        assert law.rejected.sum() <= 1 + 1e-9
        assert law.bonus.sum() <= 1 + 1e-9
    assert isinstance(laws.now(), Laws)


def test_without_drafts_there_is_nothing_to_learn() -> None:
    laws = recent(num_draft=0)
    laws.see(NONE, 0, 0)
    laws.see_rank(NONE, 0, all_accepted=True)
    assert laws.acceptance == 0.0
    assert laws.now().kinds[JIT].accept.size == 0
