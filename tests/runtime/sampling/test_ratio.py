"""The ratio rule: its one-step law equals the target's to 1e-12, for any draft."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import BackendError, UsageError
from runtime.sampling.logits import law
from runtime.sampling.noise import Purpose, uniform
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Lookup, Nothing, SparseLaw, Verdict
from runtime.sampling.ratio import draft_law, draw, residual, verify
from tests.helpers.emitted_law import (
    LARGEST_U,
    SAMPLED,
    SMALLEST_U,
    bonus_law,
    emitted_law,
    fixed,
)


def logits_of(*laws: list[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(laws), np.float32)


def sparse(ids: list[int], probs: list[float]) -> SparseLaw:
    return SparseLaw(np.array(ids, np.int32), np.array(probs, np.float64))


def random_law(rng: np.random.Generator, vocab: int, support: int) -> SparseLaw:
    ids = rng.choice(vocab, size=support, replace=False)
    probs = rng.random(support) + 1e-3
    return SparseLaw(ids.astype(np.int32), probs / probs.sum())


# --- exactness ---


@given(seed=st.integers(0, 10**6), vocab=st.integers(1, 7), data=st.data())
def test_one_step_law_is_the_targets_for_any_draft_law(seed, vocab, data):
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal((2, vocab)) * 2).astype(np.float32)
    masked = rng.random(logits.shape) < 0.3
    masked[:, rng.integers(vocab)] = False
    logits[masked] = -np.inf
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 1.0])),
        top_k=data.draw(st.sampled_from([0, 1, 2])),
        top_p=data.draw(st.sampled_from([1.0, 0.7])),
        min_p=data.draw(st.sampled_from([0.0, 0.5])),
    )
    q = random_law(rng, vocab, data.draw(st.integers(1, vocab)))
    np.testing.assert_allclose(
        emitted_law(logits, q, params), law(logits[0], params), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.3, 0.5, 0.2], sparse([0, 1, 2], [0.2, 0.19, 0.61])),
        ([0.3, 0.5, 0.2], sparse([1], [1.0])),  # S1: the draft took its argmax
        ([0.0, 0.5, 0.5], sparse([0], [1.0])),  # p = 0 where q = 1
        ([0.0, 1.0, 0.0], sparse([0, 1], [0.5, 0.5])),  # one-hot target
        ([1.0, 0.0, 0.0], sparse([0], [1.0])),  # both one-hot and equal
        ([0.5, 0.5, 0.0], sparse([2, 1], [0.9, 0.1])),
        ([1 / 3, 1 / 3, 1 / 3], sparse([2, 0, 1], [1 / 3, 1 / 3, 1 / 3])),
    ],
)
def test_one_step_law_in_the_corners(p, q):
    logits = logits_of(p, [1 / 3] * 3)
    np.testing.assert_allclose(emitted_law(logits, q), law(logits[0], SAMPLED), atol=1e-12)


def test_a_draft_at_another_temperature_does_not_bend_the_law():
    """S2: the draft ignores the request's temperature; its law says so, and p comes out."""
    target = np.array([[2, 1.5, 1, 0.5], [0, 0, 0, 0]], np.float32)
    draft = np.array([0.1, 1.5, 0.7, 0.5], np.float32)
    for temperature in (0.0, 0.4, 3.0):
        q = draft_law(draft, SamplingParams(temperature=temperature))
        np.testing.assert_allclose(emitted_law(target, q), law(target[0], SAMPLED), atol=1e-12)


def test_all_accepted_draws_the_bonus_from_the_targets_next_row():
    logits = logits_of([0.2, 0.8], [0.7, 0.3])
    probs = bonus_law(logits, Drafted((1,), (sparse([1], [1.0]),)), SAMPLED, SMALLEST_U, 1)
    np.testing.assert_allclose(probs, law(logits[1], SAMPLED), atol=1e-12)


def test_nothing_drafted_draws_from_the_target():
    logits = logits_of([0.2, 0.5, 0.3])
    np.testing.assert_allclose(
        bonus_law(logits, Nothing(), SAMPLED, 0.5, 0), law(logits[0], SAMPLED), atol=1e-12
    )


def test_a_lookup_token_is_a_point_mass():
    """Accepted with probability p(x); a rejected one is never the bonus token."""
    logits = logits_of([0.25, 0.75], [0.5, 0.5])
    p_first = float(law(logits[0], SAMPLED)[0])
    for u, verdict in ((p_first - 1e-9, Verdict(1, 0)), (p_first + 1e-9, Verdict(0, 1))):
        assert verify(logits, Lookup((0,)), SAMPLED, 0, fixed(u, 0.25)) == verdict


# --- acceptance ---


@given(seed=st.integers(0, 999), vocab=st.integers(1, 60), temperature=st.floats(0.1, 3))
def test_equal_laws_accept_everything(seed, vocab, temperature):
    """S16: with p = q acceptance is 1; accepting on equal draws would give sum of p squared."""
    logits = np.random.default_rng(seed).standard_normal((5, vocab)).astype(np.float32)
    params = SamplingParams(temperature=temperature, seed=seed)
    laws = tuple(draft_law(row, params) for row in logits[:4])
    tokens = tuple(draw(q, uniform(seed, n, Purpose.DRAFT)) for n, q in enumerate(laws))
    verdict = verify(logits, Drafted(tokens, laws), params, 0, fixed(LARGEST_U, 0.5))
    # Summing the same weights in another order may differ in the last place, and with it p / q.
    ratios = [
        law(row, params)[t] / q.prob(t) for row, t, q in zip(logits, tokens, laws, strict=False)
    ]
    assert verdict.accepted == 4 or min(ratios) < 1
    np.testing.assert_allclose(ratios, 1, rtol=1e-12)
    assert verify(logits, Drafted(tokens, laws), params, 0).accepted == 4


def test_the_draft_mirrors_the_cuts_of_the_request():
    """S17: drafting outside the request's top_k wastes drafts. top_k = 1 must accept all."""
    logits = np.random.default_rng(3).standard_normal((3, 200)).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_k=1)
    laws = tuple(draft_law(row, params) for row in logits[:2])
    tokens = tuple(draw(q, 0.5) for q in laws)
    assert verify(logits, Drafted(tokens, laws), params, 0, fixed(LARGEST_U, 0.5)).accepted == 2


def test_a_token_the_target_excludes_is_never_accepted():
    """The reference accepts p = 0 when its uniform is 0."""
    logits = logits_of([0.0, 1.0], [1.0, 0.0])
    smallest_q = Drafted((0,), (sparse([0, 1], [5e-324, 1.0]),))  # u * q underflows to 0
    for proposal in (Lookup((0,)), smallest_q):
        for u in (SMALLEST_U, 0.5, LARGEST_U):
            assert verify(logits, proposal, SAMPLED, 0, fixed(u, u)) == Verdict(0, 1)


@pytest.mark.parametrize(
    ("cut", "allowed"),
    [({"min_p": 0.9}, {0}), ({"top_p": 0.5, "temperature": 0.1}, {0}), ({"top_k": 2}, {0, 1})],
    ids=str,
)
def test_cuts_hold_at_every_row(cut, allowed):
    """S3, S7: the same cuts apply to p at every position, also where the draft ignored them."""
    logits = logits_of(*[[0.5, 0.4, 0.1]] * 4)
    q = sparse([0, 1, 2], [0.2, 0.3, 0.5])
    for seed in range(100):
        params = SamplingParams(**{"temperature": 1.0, "seed": seed, **cut})
        tokens = tuple(draw(q, uniform(seed, n, Purpose.DRAFT)) for n in range(3))
        verdict = verify(logits, Drafted(tokens, (q,) * 3), params, 0)
        assert {*tokens[: verdict.accepted], verdict.bonus} <= allowed


def test_greedy_is_equality_with_the_argmax():
    logits = np.array([[0, 3, 3], [1, 0, 0], [0, 0, 2]], np.float32)
    q = sparse([0, 1, 2], [0.2, 0.5, 0.3])
    greedy = SamplingParams()
    for u in (SMALLEST_U, LARGEST_U):
        judged = [
            verify(logits, Drafted(tokens, (q, q)), greedy, 0, fixed(u, u))
            for tokens in ((1, 0), (1, 2), (2, 0))
        ]
        assert judged == [Verdict(2, 2), Verdict(1, 0), Verdict(0, 1)]


# --- the residual ---


def test_residual_without_mass_is_the_target_itself():
    """p below q everywhere by rounding: a rejection is then an accident of 1e-16."""
    q = sparse([0, 2], [0.25, 0.75])
    p = np.array([0.25, 0, 0.75]) * (1 - 1e-16)
    np.testing.assert_array_equal(residual(p, q), p)


def test_residual_leaves_its_input_alone():
    p = np.array([0.5, 0.5])
    np.testing.assert_array_equal(residual(p, sparse([1], [1.0])), [0.5, 0])
    np.testing.assert_array_equal(p, [0.5, 0.5])


@given(seed=st.integers(0, 999), u=st.sampled_from([SMALLEST_U, 1e-9, 0.5, LARGEST_U]))
def test_the_bonus_token_never_has_probability_zero(seed, u):
    rng = np.random.default_rng(seed)
    p = rng.random(8) * (rng.random(8) < 0.5)
    p[rng.integers(8)] = 1e-300
    verdict = verify(logits_of(p / p.sum()), Nothing(), SAMPLED, 0, fixed(u, u))
    assert law(logits_of(p / p.sum())[0], SAMPLED)[verdict.bonus] > 0


def test_each_decision_has_its_own_uniform():
    """Reusing the acceptance draw for the residual would bend the law."""
    asked = []

    def recording(seed: int, position: int, purpose: Purpose) -> float:
        asked.append((seed, position, purpose))
        return LARGEST_U if position == 12 else SMALLEST_U

    params = SamplingParams(temperature=1, seed=9)
    q = sparse([0], [1.0])
    verify(logits_of(*[[0.5, 0.5]] * 4), Drafted((0,) * 3, (q,) * 3), params, 11, recording)
    assert asked == [
        (9, 11, Purpose.ACCEPT),
        (9, 12, Purpose.ACCEPT),
        (9, 12, Purpose.RESIDUAL),
    ]


# --- what is refused ---


def test_too_few_rows_are_refused():
    with pytest.raises(UsageError, match="1 drafted tokens need 2 rows"):
        verify(logits_of([1.0, 0.0]), Lookup((0,)), SAMPLED, 0)


def test_damaged_logits_are_refused():
    damaged = np.array([[0, np.nan]], np.float32)
    for params in (SAMPLED, SamplingParams(), SamplingParams(temperature=1, top_k=1)):
        with pytest.raises(BackendError):
            verify(damaged, Nothing(), params, 0)
        with pytest.raises(BackendError):
            draft_law(damaged[0], params)
