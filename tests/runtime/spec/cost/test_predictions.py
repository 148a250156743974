"""Predictions against the published closed forms, by hand, and against rounds played through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost.chain import Emission
from runtime.spec.cost.laws import KindLaw, Laws, laws_of_acceptance, paper_ranks
from runtime.spec.cost.prediction import Prediction, predict
from runtime.spec.cost.times import ByTokens, Grid, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.pair_costs import CURVED, JIT, LOOKUP, MIXED, ZERO, constant, speed, ssd
from tests.helpers.simulated_rounds import play

# --- closed forms (ssd.md section 2; arXiv 2603.03251) ---


@pytest.mark.parametrize("draft_s", [0.0005, 0.0015, 0.004, 0.01])
@pytest.mark.parametrize("width", [3, 12, 40])
def test_theorem_7(draft_s: float, width: int) -> None:
    """Speed-up over plain decoding, with T_p and T_b in units of a verification. The paper's backup
    takes K draft steps and its hit rate does not depend on the round before."""
    verify_s, num_draft = 0.010, 4
    laws = laws_of_acceptance(0.75)
    hit = laws.kinds[ProposalKind.HIT]
    share, tokens = hit.hit_rate(num_draft, width), hit.tokens(num_draft)
    ahead, behind = (num_draft + 1) * draft_s / verify_s, num_draft * draft_s / verify_s
    # A round with new drafts goes on beside its own preparation, like any other.
    seconds = share * max(1, ahead) + (1 - share) * (max(1, ahead) + behind)
    times = constant(verify_s, draft_s)
    found = speed(times, laws, ssd(num_draft, width, JIT)) / speed(times, laws, PLAIN)
    assert found == pytest.approx(tokens / seconds)
    synchronous = speed(times, laws, RoundPlan("sd", num_draft)) / speed(times, laws, PLAIN)
    assert synchronous == pytest.approx(tokens / (1 + behind))


@given(
    st.floats(0.01, 0.99),
    st.floats(0.0001, 0.0015),
    st.integers(1, 5),
    st.integers(1, 40),
    st.floats(0.3, 3.0),
)
def test_corollary_8(acceptance, draft_s, num_draft, width, exponent) -> None:
    """With the same draft ahead and again after a miss, ssd is never slower than sd, and its gain
    is (1 + T) / (1 + T (1 - p)) where the draft fits beside a verification."""
    laws = laws_of_acceptance(acceptance, exponent)
    times = constant(0.010, draft_s)
    found = predict(times, laws, 1, ssd(num_draft, width, JIT))
    before = speed(times, laws, RoundPlan("sd", num_draft))
    drafting = num_draft * draft_s / 0.010
    assert found.hit_rate is not None
    gain = (1 + drafting) / (1 + drafting * (1 - found.hit_rate))
    assert found.tokens_s / before == pytest.approx(gain)
    assert found.tokens_s >= before * (1 - 1e-12)


def test_hits_and_misses_alternate_as_two_states() -> None:
    """pi_hit = p_b / (1 - p_p + p_b), tokens and seconds averaged by it."""
    found = predict(CURVED, MIXED, 1, ssd(3, 6, ZERO))
    hit, none = MIXED.kinds[ProposalKind.HIT], MIXED.kinds[ProposalKind.NONE]
    p, b = hit.hit_rate(3, 6), none.hit_rate(0, 6)
    share = b / (1 - p + b)
    ahead = CURVED.draft_beside.seconds(1, 1) + 3 * CURVED.draft_beside.seconds(1, 6)
    seconds = share * max(CURVED.target_beside.seconds(1, 4), ahead)
    seconds += (1 - share) * max(CURVED.target_beside.seconds(1, 1), ahead)
    tokens = share * hit.tokens(3) + 1 - share
    assert found.hit_rate == pytest.approx(share)
    assert (found.hit_rate_after_hit, found.hit_rate_after_miss) == pytest.approx((p, b))
    assert found.tokens_s == pytest.approx(tokens / (seconds + 0.0003))


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_what_a_draft_device_must_hide(share: float) -> None:
    """For 4 + 1 devices the draft's share of a round of sd must be 20 % where all outcomes are
    prepared, and (h - 1) / (h p), h = 5 / 4, where a share p is."""
    ranks = np.array([share])
    every = KindLaw(np.array([0.8]), ranks, ranks)
    laws = Laws(dict.fromkeys(ProposalKind, every))
    h = 5 / 4
    threshold = (h - 1) / (h * share)
    for drafting, pays in ((threshold - 0.01, False), (threshold + 0.01, True)):
        # t + d = 1, of which K steps of the draft are d.
        times = constant(1 - drafting, drafting / 3)
        alone = speed(times, laws, RoundPlan("sd", 3)) / 4
        together = speed(times, laws, ssd(3, 4, JIT)) / 5
        assert (together > alone) is pays


# --- by hand ---


def certain(first: float) -> Laws:
    """Every draft is accepted; bonus tokens are the first candidate so often, else none."""
    ranks = np.array([first])
    return Laws(dict.fromkeys(ProposalKind, KindLaw(np.array([1.0]), ranks, ranks)))


def test_a_perfect_draft_costs_one_verification_a_round() -> None:
    assert speed(constant(0.020, 0.001), certain(1.0), ssd(2, 1, ZERO)) == pytest.approx(3 / 0.020)


def test_a_draft_slower_than_the_target_sets_the_pace() -> None:
    found = speed(constant(0.020, 0.030), certain(1.0), ssd(2, 1, ZERO))
    assert found == pytest.approx(3 / (3 * 0.030))


@pytest.mark.parametrize("fallback", [ZERO, LOOKUP])
def test_a_draft_that_never_hits_gives_plain_rounds(fallback: Fallback) -> None:
    found = predict(CURVED, certain(0.0), 1, ssd(2, 8, fallback))
    assert found.tokens_s == pytest.approx(1 / (CURVED.target_beside.seconds(1, 1) + 0.0003))
    assert found.hit_rate == 0.0


def test_lookups_by_hand() -> None:
    """A quarter of the misses finds something to copy; one token of two of it stands."""
    none = np.zeros(1)
    law, copied = KindLaw(none, none, none), KindLaw(np.array([1.0, 0.0]), none, none)
    laws = Laws(dict.fromkeys(ProposalKind, law) | {ProposalKind.LOOKUP: copied}, 0.25)
    times = PairTimes.apart(ByTokens((1, 3), (0.016, 0.020)), ByTokens((1,), (0.001,)))
    found = speed(times, laws, ssd(2, 4, LOOKUP))
    assert found == pytest.approx((0.25 * 2 + 0.75) / (0.25 * 0.020 + 0.75 * 0.016))


def test_one_row_s_copy_holds_up_the_other() -> None:
    """The root pass feeds all of a copied proposal, and the draft sets the pace here."""
    none = np.zeros(1)
    law = KindLaw(none, none, none)
    times = PairTimes.apart(ByTokens((1,), (0.001,)), Grid((1,), (1, 3), ((0.002, 0.006),)))
    laws = Laws(dict.fromkeys(ProposalKind, law), 0.5)
    ahead, ahead_of_copy = 0.002 + 2 * 0.002, 0.006 + 2 * 0.002
    found = predict(times, laws, 2, ssd(2, 1, LOOKUP))
    assert found.round_s == pytest.approx(0.25 * ahead + 0.75 * ahead_of_copy)


# --- rounds played through ---


@pytest.mark.parametrize("fallback", Fallback)
@pytest.mark.parametrize("batch", [1, 2, 5, 12])
def test_a_played_batch_is_as_fast_as_predicted(fallback: Fallback, batch: int) -> None:
    plan = ssd(3, 6, fallback)
    found = predict(CURVED, MIXED, batch, plan)
    played = play(CURVED, MIXED, batch, plan, rounds=24_000 // batch + 4000)
    assert found.tokens_s == pytest.approx(played.tokens_s, rel=0.015)
    assert found.round_s == pytest.approx(played.seconds / played.rounds, rel=0.01)
    assert found.tokens_round == pytest.approx(played.tokens / played.verifications, rel=0.015)
    assert found.hit_rate == pytest.approx(played.hits / played.verifications, abs=0.012)


@pytest.mark.parametrize("fallback", Fallback)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_played_stream_waits_as_predicted(fallback: Fallback, batch: int) -> None:
    plan = ssd(3, 6, fallback)
    found = predict(CURVED, MIXED, batch, plan)
    played = play(CURVED, MIXED, batch, plan, rounds=30_000)
    gaps = np.array(played.gaps)
    for each in found.emissions:
        seen = np.isclose(gaps, each.seconds, rtol=1e-6)
        equal = [e.share for e in found.emissions if np.isclose(e.seconds, each.seconds)]
        assert seen.mean() == pytest.approx(sum(equal), abs=0.012)
    for quantile in (0.5, 0.99):
        assert found.arrival_s(quantile) == pytest.approx(np.quantile(gaps, quantile), rel=1e-6)
        expected = np.quantile(played.token_gaps, quantile)
        assert found.latency_s(quantile) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def published_laws() -> Laws:
    """The published histogram of a 70B + 1B pair, K = 7, and its law of misses."""
    accepted = np.array([0.13, 0.094, 0.07, 0.058, 0.048, 0.042, 0.035, 0.523])
    reached = accepted[::-1].cumsum()[::-1]
    ranks = paper_ranks(1.93, 16)
    law = KindLaw(reached[1:] / reached[:-1], ranks, ranks)
    return Laws(dict.fromkeys(ProposalKind, law))


def test_a_published_run_of_sd_is_met() -> None:
    """182 tokens/s with K = 6 in another run of that pair: 12.2 ms of a round's 27.5 drafting."""
    times = constant(0.0153, 0.0122 / 6)
    assert speed(times, published_laws(), RoundPlan("sd", 6)) == pytest.approx(182, rel=0.04)


def test_a_played_published_pair() -> None:
    """K = 7, W = 24: jit and zero, one row and sixteen."""
    laws, times = published_laws(), constant(0.015, 0.0022)
    for batch in (1, 16):
        for fallback in (ZERO, JIT):
            plan = ssd(7, 24, fallback)
            found = predict(times, laws, batch, plan)
            played = play(times, laws, batch, plan, rounds=20_000 // batch + 2000)
            assert found.tokens_s == pytest.approx(played.tokens_s, rel=0.015)


# --- latencies by hand ---


def made(*emissions: tuple[float, float, float]) -> Prediction:
    found = tuple(Emission(*each) for each in emissions)
    return Prediction(PLAIN, 1, 1.0, 1.0, 1.0, None, None, None, found)


def test_tokens_of_a_block_arrive_at_once() -> None:
    """Three of four emissions bring four tokens after 10 ms, one brings one after 30 ms: thirteen
    tokens, of which nine come with another, three after 10 ms and one after 30."""
    found = made((0.75, 0.010, 4.0), (0.25, 0.030, 1.0))
    assert found.latency_s(9 / 13) == 0.0
    assert found.latency_s(9.1 / 13) == 0.010
    assert found.latency_s(12 / 13) == 0.010
    assert found.latency_s(12.1 / 13) == 0.030
    assert (found.arrival_s(0.75), found.arrival_s(0.76)) == (0.010, 0.030)


def test_plain_decoding_is_as_even_as_its_calls() -> None:
    found = predict(CURVED, MIXED, 2, PLAIN)
    seconds = CURVED.target.seconds(2, 1) + 0.0003
    assert found.latency_s(0.5) == found.latency_s(0.99) == found.token_s == pytest.approx(seconds)
    assert found.tokens_s == pytest.approx(2 / seconds)
    assert found.hit_rate is None


def test_synchronous_drafting_by_hand() -> None:
    """The first step feeds two tokens if a row accepted all."""
    found = predict(CURVED, MIXED, 2, RoundPlan("sd", 3))
    law = MIXED.kinds[ProposalKind.JIT]
    draft = CURVED.draft
    any_all = 1 - (1 - 0.7**3) ** 2
    first = (1 - any_all) * draft.seconds(2, 1) + any_all * draft.seconds(2, 2)
    seconds = first + 2 * draft.seconds(2, 1) + CURVED.target.seconds(2, 4) + 0.0003
    assert found.tokens_s == pytest.approx(2 * law.tokens(3) / seconds)
