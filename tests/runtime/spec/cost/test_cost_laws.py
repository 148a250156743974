"""Laws for any K and W, and where they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost.laws import (
    KindLaw,
    Laws,
    laws_of_acceptance,
    laws_of_log,
    paper_ranks,
)
from runtime.spec.fallback import ProposalKind
from runtime.spec.fanout import covered, fan_out, geometric
from runtime.spec.outcome_log import LoggedRound, LogHeader, OutcomeLog
from runtime.spec.statistics import OutcomeStatistics

PUBLISHED = np.array([0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523])
"""Pr(k) of a 70B + 1B pair, greedy, K = 7."""


def published(num_ranks: int = 16) -> KindLaw:
    reached = PUBLISHED[::-1].cumsum()[::-1]
    ranks = paper_ranks(1.93, num_ranks)
    return KindLaw(reached[1:] / reached[:-1], ranks, ranks)


rates = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(rates, st.integers(0, 9))
def test_the_law_of_accepted_counts_is_one_and_gives_the_mean(accept, num_draft) -> None:
    law = KindLaw(np.array(accept), np.zeros(1), np.zeros(1))
    found = law.accepted(num_draft)
    assert found.shape == (num_draft + 1,)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    assert law.tokens(num_draft) == pytest.approx(found @ np.arange(1, num_draft + 2))


def test_fewer_drafts_cut_the_law_and_more_go_on_at_the_last_rate() -> None:
    law = published()
    assert law.accepted(7) == pytest.approx(PUBLISHED)
    assert law.accepted(3) == pytest.approx([0.13, 0.094, 0.07, 0.706])
    last = law.accept[-1]
    assert law.accepted(9)[7:] == pytest.approx(
        [0.523 * (1 - last), 0.523 * last * (1 - last), 0.523 * last**2]
    )


def test_an_even_acceptance_is_the_capped_geometric_law() -> None:
    law = laws_of_acceptance(0.8).kinds[ProposalKind.HIT]
    assert law.accepted(5) == pytest.approx(geometric(0.8, 5))
    assert law.tokens(5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))


def test_the_fan_out_of_the_published_histogram() -> None:
    """The closed form (Theorem 12) gives 3, 3, 3, 3, 2, 2, 2, 6 and 0.912, against 0.88 for an even
    one; without its rounding to whole guesses."""
    law = published()
    assert law.fan_out(7, 24) == (3, 3, 3, 3, 2, 2, 2, 6)
    even = covered(PUBLISHED, np.tile(law.bonus, (8, 1)), np.full(8, 3))
    assert even == pytest.approx(0.88, abs=0.001)
    assert law.hit_rate(7, 24) == pytest.approx(0.912, abs=0.005)


def test_many_branches_miss_as_the_closed_form_says() -> None:
    """p_miss = (1 - a) N ** (1 + r) * B ** -r, where guesses are many enough to be parted."""
    a, r, num_draft, width = 0.7, 1.2, 3, 2000
    beta = a ** (1 / (1 + r))
    capped = beta**num_draft * (1 - a) ** (-1 / (1 + r))
    spread = (1 - beta**num_draft) / (1 - beta) + capped
    expected = (1 - a) * spread ** (1 + r) * width**-r
    law = laws_of_acceptance(a, r, 4000).kinds[ProposalKind.HIT]
    assert 1 - law.hit_rate(num_draft, width) == pytest.approx(expected, rel=0.01)
    first = law.fan_out(num_draft, width)[0]
    assert first == pytest.approx(width / spread, rel=0.01)


@given(rates, st.lists(st.floats(0, 0.2), min_size=1, max_size=5), st.integers(0, 5), st.data())
def test_hit_rates_are_those_of_the_drafts_own_fan_out(accept, ranks, num_draft, data) -> None:
    """The worker picks outcomes with ``fan_out``; the model must count the same ones."""
    width = data.draw(st.integers(0, 30))
    law = KindLaw(np.array(accept), np.array(ranks), np.array(ranks[::-1]))
    shares = law.accepted(num_draft)
    table = np.vstack([np.tile(law.rejected, (num_draft, 1)), law.bonus])
    counts = fan_out(shares, table, width)
    assert law.hit_rate(num_draft, width) == pytest.approx(covered(shares, table, counts))
    assert sum(law.fan_out(num_draft, width)) == min(width, table.size)
    assert law.fan_out(num_draft, width) == tuple(counts)


@pytest.mark.parametrize("exponent", [0.3, 0.86, 1.93, 3.0])
def test_ranks_of_the_papers_law_fall_and_miss_as_it_says(exponent: float) -> None:
    ranks = paper_ranks(exponent, 20)
    assert (np.diff(ranks) < 0).all()
    guesses = np.arange(2, 21)
    assert 1 - ranks.cumsum()[1:] == pytest.approx(guesses**-exponent)
    for fewer in (1, 2, 3):
        assert paper_ranks(exponent, fewer) == pytest.approx(ranks[:fewer])


def test_acceptance_is_accepted_of_judged_tokens() -> None:
    assert laws_of_acceptance(0.6).acceptance == pytest.approx(0.6)
    law = KindLaw(np.array([0.5, 1.0]), np.zeros(1), np.zeros(1))
    # Of two rounds: two tokens judged in one, one in the other; two accepted.
    assert Laws(dict.fromkeys(ProposalKind, law)).acceptance == pytest.approx(2 / 3)


# --- from statistics ---


def test_statistics_give_the_laws_that_they_plan_by() -> None:
    statistics = OutcomeStatistics(4, 6, (0.5, 0.2, 0.1))
    random = np.random.default_rng(0)
    for _ in range(300):
        kind = ProposalKind(1 + int(random.integers(4)))
        drafted = 0 if kind is ProposalKind.NONE else 4
        accepted = int(random.integers(drafted + 1))
        rank = int(random.integers(9))
        statistics.observe(
            kind=kind,
            num_drafted=drafted,
            accepted=accepted,
            rank=rank if rank < 6 else None,
            hit=rank < 2,
        )
    laws = Laws.of(statistics)
    assert laws.lookup_share == statistics.lookup_share
    for kind in ProposalKind:
        drafted = 0 if kind is ProposalKind.NONE else 4
        law = laws.kinds[kind]
        assert law.accepted(drafted) == pytest.approx(statistics.accepted_law(drafted, kind))
        for width in (1, 5, 12):
            plan = statistics.plan(kind, drafted, width)
            assert law.hit_rate(drafted, width) == pytest.approx(plan.hit_rate)


# --- from a log ---


def logged(kind: ProposalKind, accept: list[float], num_ranks: int, seed: int = 0, num: int = 4000):
    random = np.random.default_rng(seed)
    drafted = len(accept)
    for _ in range(num):
        accepted = 0
        while accepted < drafted and random.random() < accept[accepted]:
            accepted += 1
        rank = int(random.geometric(0.6)) - 1
        yield LoggedRound(0, kind, drafted, accepted, rank if rank < num_ranks else None, False)


def test_a_long_log_gives_the_rates_that_it_was_drawn_from() -> None:
    accept = [0.9, 0.5, 0.7]
    rounds = tuple(logged(ProposalKind.HIT, accept, 4))
    law = laws_of_log(OutcomeLog(LogHeader("", "ssd", 3, 4), rounds)).kinds[ProposalKind.HIT]
    assert law.accept == pytest.approx(accept, abs=0.04)
    expected = 0.6 * 0.4 ** np.arange(4)
    assert law.rejected == pytest.approx(expected, abs=0.04)
    assert law.bonus == pytest.approx(expected, abs=0.04)


def test_rounds_that_drafted_less_do_not_count_as_rejections() -> None:
    """At the end of a text there is no room for all K: its last token was not even drafted."""
    short = tuple(LoggedRound(0, ProposalKind.JIT, 1, 1, None, None) for _ in range(1000))
    full = tuple(LoggedRound(0, ProposalKind.JIT, 3, 3, None, None) for _ in range(1000))
    log = OutcomeLog(LogHeader("", "sd", 3, 0), short + full)
    assert laws_of_log(log).kinds[ProposalKind.JIT].accept == pytest.approx([1, 1, 1])


def test_a_kind_that_was_not_seen_goes_by_the_drafts_others() -> None:
    rounds = tuple(logged(ProposalKind.HIT, [0.9, 0.5], 4))
    laws = laws_of_log(OutcomeLog(LogHeader("", "ssd", 2, 4), rounds))
    hit, again, none = (
        laws.kinds[kind] for kind in (ProposalKind.HIT, ProposalKind.JIT, ProposalKind.NONE)
    )
    assert again.accept == pytest.approx(hit.accept, abs=0.01)
    assert none.bonus == pytest.approx(hit.bonus, abs=0.01)
    assert laws.lookup_share == 0.0


def test_copies_are_judged_by_themselves() -> None:
    own = tuple(logged(ProposalKind.HIT, [0.9, 0.9], 4, num=500))
    copied = tuple(logged(ProposalKind.LOOKUP, [0.2, 0.2], 4, num=300))
    bare = tuple(LoggedRound(0, ProposalKind.NONE, 0, 0, 0, None) for _ in range(100))
    laws = laws_of_log(OutcomeLog(LogHeader("", "ssd", 2, 4), own + copied + bare))
    assert laws.lookup_share == pytest.approx(0.75)
    assert laws.kinds[ProposalKind.LOOKUP].accept == pytest.approx([0.2, 0.2], abs=0.07)
    assert laws.kinds[ProposalKind.HIT].accept == pytest.approx([0.9, 0.9], abs=0.05)


def test_ranks_that_nobody_looked_for_are_not_misses() -> None:
    """A text's last outcome is not looked up: its rank is unknown, not beyond the candidates."""
    seen = [LoggedRound(0, ProposalKind.HIT, 2, 1, 0, True)] * 200
    last = [LoggedRound(0, ProposalKind.HIT, 2, 1, None, None)] * 200
    laws = laws_of_log(OutcomeLog(LogHeader("", "ssd", 2, 4), (*seen, *last)))
    assert laws.kinds[ProposalKind.HIT].rejected[0] > 0.9


def test_a_log_without_ranks_takes_the_published_ones() -> None:
    rounds = tuple(LoggedRound(0, ProposalKind.JIT, 2, 1, None, None) for _ in range(9))
    laws = laws_of_log(OutcomeLog(LogHeader("", "sd", 2, 0), rounds))
    expected = paper_ranks(1.93, 64)
    for kind in ProposalKind:
        assert laws.kinds[kind].rejected == pytest.approx(expected)
        assert laws.kinds[kind].bonus == pytest.approx(expected)
