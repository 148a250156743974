"""Saguaro sampling: a reshaped draft law, exact all the same, and what it buys."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.sampling.api import RatioRule, rule
from runtime.sampling.logits import law
from runtime.sampling.noise import Purpose, uniform
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, SparseLaw
from runtime.sampling.ratio import draft_law, draw, saguaro
from tests.helpers.emitted_law import emitted_law

Q = SparseLaw(np.array([7, 2, 9, 4], np.int32), np.array([0.4, 0.3, 0.2, 0.1]))


# --- the shape ---


def test_prepared_tokens_and_one_more_lose_mass():
    """One more, since the drafted token itself is no candidate where it is rejected."""
    shaped = saguaro(Q, 1, 0.5)
    assert shaped.ids.tolist() == [7, 2, 9, 4]
    np.testing.assert_allclose(shaped.probs, np.array([0.2, 0.15, 0.2, 0.1]) / 0.65)


def test_zero_leaves_the_prepared_tokens_out():
    shaped = saguaro(Q, 2, 0.0)
    assert (shaped.ids.tolist(), shaped.probs.tolist()) == ([4], [1.0])


@pytest.mark.parametrize("scale", [0.0, 0.5])
@pytest.mark.parametrize("num_prepared", [3, 4, 100])
def test_a_law_with_nothing_beyond_the_prepared_tokens_stays_as_it_is(scale, num_prepared):
    """The scale would cancel; 0 would leave no law at all."""
    assert saguaro(Q, num_prepared, scale) is Q


def test_the_law_given_is_left_alone():
    before = Q.probs.copy()
    saguaro(Q, 1, 0.1)
    np.testing.assert_array_equal(Q.probs, before)


# --- exactness ---

cuts = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 3]),
        "top_p": st.sampled_from([1.0, 0.7]),
        "min_p": st.sampled_from([0.0, 0.3]),
    }
)


@given(
    seed=st.integers(0, 10**6),
    cut=cuts,
    scale=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    num_prepared=st.integers(0, 7),
    support=st.integers(1, 7),
)
def test_one_step_law_is_the_targets_under_every_cut(seed, cut, scale, num_prepared, support):
    """To 1e-12: the law drawn from is the one divided by and subtracted."""
    rng = np.random.default_rng(seed)
    target, draft = np.round(rng.standard_normal((2, 7)) * 2).astype(np.float32)
    params = SamplingParams(**cut, seed=seed)
    shaping = RatioRule(max_support=support, saguaro=scale)
    token, q = shaping.draft_token(draft, params, 4, num_prepared=num_prepared)
    assert q is not None
    assert token == draw(q, uniform(seed, 4, Purpose.DRAFT))
    logits = np.stack([target, target])
    np.testing.assert_allclose(
        emitted_law(logits, q, params), law(target, params), rtol=0, atol=1e-12
    )


def test_the_rule_shapes_for_the_candidates_of_the_place_alone():
    draft = np.array([3, 2, 1, 0], np.float32)
    params = SamplingParams(temperature=1.0)
    shaping, plain = rule("ratio", saguaro=0.25), draft_law(draft, params)
    for num_prepared in range(5):
        _, q = shaping.draft_token(draft, params, 0, num_prepared=num_prepared)
        assert q is not None
        expected = saguaro(plain, num_prepared, 0.25) if num_prepared else plain
        np.testing.assert_array_equal(q.probs, expected.probs)


def test_greedy_rows_beside_sampling_ones_are_not_shaped():
    """A mixed batch: each row by its own parameters; at temperature 0 there is nothing to shape."""
    draft = np.array([3, 2, 1, 0], np.float32)
    shaping = rule("ratio", saguaro=0.0)
    token, q = shaping.draft_token(draft, SamplingParams(), 0, num_prepared=2)
    assert q is not None
    assert (token, q.ids.tolist()) == (0, [0])
    assert shaping.draft_token(draft, SamplingParams(1.0), 0, num_prepared=2)[0] == 3


def test_candidates_are_those_that_were_shaped_for_also_in_target_ids():
    """Were they ranked in another way, the mass would move to tokens nobody prepares."""
    rng = np.random.default_rng(4)
    draft, ids_map = rng.standard_normal(40).astype(np.float32), rng.permutation(90)[:40]
    params = SamplingParams(temperature=0.8)
    shaping = rule("ratio", saguaro=0.0)
    _, q = shaping.draft_token(draft, params, 3, ids_map, num_prepared=5)
    assert q is not None
    prepared = shaping.bonus_candidates(draft, params, 3, 6, None, ids_map)
    assert not set(prepared.tolist()) & set(q.ids.tolist())


# --- what it buys ---


def hits_and_acceptance(scale: float, num_prepared: int, num_draws: int) -> tuple[float, float]:
    """Share of rejections whose bonus token was prepared, and of accepted drafts, on a synthetic
    pair: one place, drawn again and again."""
    rng = np.random.default_rng(8)
    target = (rng.standard_normal(60) * 1.5).astype(np.float32)
    draft = target + rng.standard_normal(60).astype(np.float32)
    made, logits = rule("ratio", saguaro=scale), np.stack([target, target])
    num_hits = num_accepted = 0
    for seed in range(num_draws):
        params = SamplingParams(temperature=1.0, seed=seed)
        token, q = made.draft_token(draft, params, 0, num_prepared=num_prepared)
        assert q is not None
        verdict = made.verify(logits, Drafted((token,), (q,)), params, 0)
        if verdict.accepted:
            num_accepted += 1
        else:
            num_hits += verdict.bonus in made.bonus_candidates(
                draft, params, 0, num_prepared, exclude=token
            )
    return num_hits / (num_draws - num_accepted), num_accepted / num_draws


@pytest.mark.stat
def test_a_smaller_scale_hits_more_and_accepts_less():
    """Theorem 15. Each share differs from the one before by 5 standard deviations at least."""
    num_draws = 4000
    found = [hits_and_acceptance(scale, 6, num_draws) for scale in (1.0, 0.1, 0.0)]
    hits, accepted = zip(*found, strict=True)
    gap = 5 * (2 * 0.25 / num_draws) ** 0.5
    assert all(after - before > gap for before, after in pairwise(hits)), hits
    assert all(before - after > gap for before, after in pairwise(accepted)), accepted
