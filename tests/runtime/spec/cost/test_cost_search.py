"""The best setting, against looking at every one; and the budgets it must find."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.spec.cost.laws import KindLaw, Laws, laws_of_acceptance, paper_ranks
from runtime.spec.cost.prediction import predict
from runtime.spec.cost.search import ENOUGH, Space, best, best_of_mode, up_to
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan

TIMES = PairTimes.apart(
    ByTokens((1, 64), (0.010, 0.013)), ByTokens((1, 64), (0.0008, 0.0020)), 0.0001
)


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.9])
def test_no_setting_is_faster_than_the_best_one(batch: int, acceptance: float) -> None:
    laws = laws_of_acceptance(acceptance)
    found = best_of_mode(TIMES, laws, batch, "ssd", up_to(8, 24))
    every = Space(range(1, 9), range(1, 25)).plans("ssd")
    fastest = max(predict(TIMES, laws, batch, plan).tokens_s for plan in every)
    assert found.tokens_s >= ENOUGH * ENOUGH * fastest


def test_of_equals_the_smallest_is_chosen() -> None:
    """Nothing is accepted: one draft and one branch do what many do."""
    free = PairTimes.apart(ByTokens((1,), (0.010,)), ByTokens((1,), (0.0,)))
    found = best_of_mode(free, laws_of_acceptance(0.0), 1, "sd", up_to(8, 8))
    assert found.plan == RoundPlan("sd", 1)
    certain = np.array([1.0])
    law = KindLaw(np.array([1.0]), certain, certain)
    found = best_of_mode(free, Laws(dict.fromkeys(ProposalKind, law)), 1, "ssd", up_to(4, 32))
    # All four tokens are always accepted and the bonus token is known: one branch hits.
    assert found.plan == RoundPlan("ssd", 4, 1, Fallback.ZERO)


def test_plain_decoding_is_one_setting() -> None:
    assert best_of_mode(TIMES, laws_of_acceptance(0.5), 1, "ar", up_to(8, 8)).plan == PLAIN


def test_the_first_of_equal_plans_is_kept() -> None:
    plans = [RoundPlan("ssd", 2, 3, fallback) for fallback in (Fallback.LOOKUP, Fallback.ZERO)]
    # Nothing to copy: both are the same.
    assert best(TIMES, laws_of_acceptance(0.5), 1, plans).plan is plans[0]


@pytest.mark.parametrize("most", [1, 2, 5, 24, 64])
def test_widths_reach_the_most_and_begin_with_one(most: int) -> None:
    widths = up_to(1, most).widths
    assert widths[0] == 1
    assert widths[-1] == most
    assert list(widths) == sorted(set(widths))


@pytest.mark.parametrize(
    ("batch", "verify_ms", "draft_ms", "budget"),
    [(1, 15.0, 2.2, 300), (1, 15.0, 1.0, 345), (16, 20.2, 1.5, 3900)],
)
def test_the_published_pair_meets_its_budgets(
    batch: int, verify_ms: float, draft_ms: float, budget: float
) -> None:
    """architecture.md section 8, by the published histogram of k and r = 1.93."""
    accepted = np.array([0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523])
    reached = accepted[::-1].cumsum()[::-1]
    ranks = paper_ranks(1.93, 16)
    law = KindLaw(reached[1:] / reached[:-1], ranks, ranks)
    laws = Laws(dict.fromkeys(ProposalKind, law))
    target, draft = ByTokens((1,), (verify_ms / 1e3,)), ByTokens((1,), (draft_ms / 1e3,))
    times = PairTimes.apart(target, draft)
    assert best_of_mode(times, laws, batch, "ssd", up_to(12, 32)).tokens_s >= budget


def test_the_best_setting_hangs_on_the_times() -> None:
    """A slow draft asks for short proposals, a quick one for long ones."""
    laws = laws_of_acceptance(0.9)
    target = ByTokens((1,), (0.015,))
    chosen = [
        best_of_mode(
            PairTimes.apart(target, ByTokens((1,), (draft_s,))), laws, 1, "ssd", up_to(16, 32)
        ).plan.num_draft
        for draft_s in (0.004, 0.002, 0.0005)
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]
