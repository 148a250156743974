"""What a drafter hands over: the draft's law, draws from it, and proposals that fit it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from runtime.sampling.logits import law
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Lookup, Proposal, SparseLaw
from runtime.sampling.ratio import draft_law, draw, verify

SAMPLED = SamplingParams(temperature=1.0)
EVEN = np.zeros((2, 2), np.float32)  # target logits [R, V], two tokens alike


def sparse(ids: list[int], probs: list[float]) -> SparseLaw:
    return SparseLaw(np.array(ids, np.int32), np.array(probs, np.float64))


# --- the draft's law ---


@given(seed=st.integers(0, 999), vocab=st.integers(1, 400), support=st.integers(1, 128))
def test_draft_law_is_the_softmax_over_its_likeliest_ids(seed, vocab, support):
    logits = np.random.default_rng(seed).standard_normal(vocab).astype(np.float32)
    q = draft_law(logits, SamplingParams(temperature=0.7), max_support=support)
    top = sorted(range(vocab), key=lambda i: (-logits[i], i))[:support]
    assert q.ids.tolist() == top
    assert [q.ids.dtype, q.probs.dtype] == [np.dtype(np.int32), np.dtype(np.float64)]
    masked = np.full(vocab, -np.inf, np.float32)
    masked[top] = logits[top]
    np.testing.assert_allclose(
        q.probs, law(masked, SamplingParams(temperature=0.7))[top], rtol=1e-12
    )


def test_draft_law_is_in_target_ids():
    logits = np.array([0, 5, 4, -np.inf], np.float32)
    ids_map = np.array([7, 30, 31, 99], np.int32)
    q = draft_law(logits, SamplingParams(temperature=1), ids_map)
    assert q.ids.tolist() == [30, 31, 7], "a masked id is outside the support"
    assert draft_law(logits, SamplingParams(), ids_map).ids.tolist() == [30]
    assert draft_law(logits, SamplingParams(temperature=1, top_k=2), ids_map).ids.tolist() == [
        30,
        31,
    ]


def test_tiny_temperature_leaves_no_zeros_in_the_draft_law():
    q = draft_law(np.array([1, 3, 2], np.float32), SamplingParams(temperature=1e-300))
    assert (q.ids.tolist(), q.probs.tolist()) == ([1], [1.0])


def test_weights_that_vanish_when_normalised_are_left_out():
    """The lightest weight is the smallest float there is: half of it is 0, and a law that claims
    to have drawn such a token is refused; shaped by 0 it would leave no law at all."""
    logits = np.array([0, 0, -744.4400719213812], np.float64).astype(np.float32)
    params = SamplingParams(temperature=float(-logits[2]) / 744.4400719213812)
    q = draft_law(logits, params)
    assert q.ids.tolist() == [0, 1]
    assert q.probs.min() > 0


@given(seed=st.integers(0, 999), support=st.integers(1, 20))
def test_draw_follows_the_law_it_is_given(seed, support):
    rng = np.random.default_rng(seed)
    probs = rng.random(support) + 1e-3
    q = sparse(rng.permutation(50)[:support].tolist(), (probs / probs.sum()).tolist())
    edges = np.concatenate([[0], q.probs.cumsum()])
    for token, low, high in zip(q.ids, edges[:-1], edges[1:], strict=True):
        assert draw(q, float(low + high) / 2) == token
    assert draw(q, 2.0**-53) == q.ids[0]
    assert draw(q, 1 - 2.0**-53) == q.ids[-1]


# --- what is refused ---


def test_drafted_tokens_without_their_law_are_refused():
    """Judging them by equality or as a point mass would bend the law in silence."""
    for params in (SAMPLED, SamplingParams()):
        with pytest.raises(UsageError, match="needs the law"):
            verify(EVEN, Drafted((0,)), params, 0)


def test_a_token_its_law_cannot_have_drawn_is_refused():
    proposal = Drafted((1,), (sparse([0], [1.0]),))
    with pytest.raises(UsageError, match="drafted token 1 has probability 0"):
        verify(EVEN, proposal, SAMPLED, 0)


def test_a_proposal_has_one_law_a_token():
    with pytest.raises(UsageError, match="2 drafted tokens but 1 laws"):
        Drafted((0, 1), (sparse([0], [1.0]),))


@pytest.mark.parametrize(
    ("ids", "probs"), [([], []), ([1, 2], [1.0]), ([0] * 129, [1 / 129] * 129)]
)
def test_a_sparse_law_has_a_bounded_matching_support(ids, probs):
    with pytest.raises(UsageError, match=r"1\.\.128"):
        sparse(ids, probs)


@pytest.mark.parametrize(
    "proposal",
    [Lookup((2,)), Lookup((-1,)), Drafted((0,), (sparse([0, 2], [0.5, 0.5]),))],
    ids=["token too large", "padding", "support too large"],
)
def test_ids_outside_the_target_vocabulary_are_refused(proposal: Proposal):
    """A negative id would index from the end of the vocabulary in silence."""
    with pytest.raises(UsageError, match=r"outside the target's vocabulary 0\.\.1"):
        verify(EVEN, proposal, SAMPLED, 0)
