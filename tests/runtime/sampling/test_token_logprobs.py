"""Log-probabilities of emitted tokens: the target's own law, whatever the request asks for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engines.errors import BackendError, UsageError
from runtime.sampling.logprobs import token_logprobs

rows = hnp.arrays(
    np.float32, st.integers(1, 90), elements=st.sampled_from([-np.inf, -9, -1.5, 0, 2, 2.25])
).filter(lambda row: row.max() > -np.inf)


def log_softmax(row: np.ndarray) -> np.ndarray:
    exact = row.astype(np.float64)
    peak = exact.max()
    return exact - peak - np.log(np.exp(exact - peak).sum())


@given(row=rows, token=st.integers(0, 89), num_top=st.integers(0, 100))
def test_it_is_the_log_softmax_and_its_ranking(row, token, num_top):
    """L1: every log-probability was 0 where speculation was on."""
    token %= row.size
    found, exact = token_logprobs(row, token, num_top), log_softmax(row)
    np.testing.assert_allclose(found.logprob, exact[token], atol=1e-5)
    order = sorted(range(row.size), key=lambda i: (-row[i], i))
    assert found.top_ids.tolist() == order[:num_top]
    np.testing.assert_allclose(found.top_logprobs, exact[order[:num_top]], atol=1e-5)
    assert found.rank == order.index(token)
    assert (found.top_ids.dtype, found.top_logprobs.dtype) == (np.int32, np.float32)


def test_a_full_vocabulary_is_summed_without_loss():
    """Fifty thousand terms in float32 alone would be off by more than the tolerance."""
    row = np.random.default_rng(0).standard_normal(49152).astype(np.float32)
    exact = log_softmax(row)
    worst = max(abs(token_logprobs(row, t, 0).logprob - exact[t]) for t in range(0, 49152, 997))
    assert worst < 1e-6


@pytest.mark.parametrize("shift", [-3e4, 3e4])
def test_large_logits_neither_overflow_nor_vanish(shift):
    row = np.array([shift, shift + 1], np.float32)
    np.testing.assert_allclose(token_logprobs(row, 0, 2).logprob, -1.3132617, atol=1e-5)


def test_the_logits_are_left_alone():
    row = np.array([3, 1, 2], np.float32)
    token_logprobs(row, 1, 2)
    assert row.tolist() == [3, 1, 2]


@pytest.mark.parametrize("token", [-1, 3])
def test_a_token_without_a_logit_is_refused(token):
    """A negative id would read from the end of the vocabulary in silence."""
    with pytest.raises(UsageError, match="outside the 3 logits"):
        token_logprobs(np.zeros(3, np.float32), token, 1)


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(UsageError, match="expected at least 0"):
        token_logprobs(np.zeros(3, np.float32), 0, -1)


def test_equal_values_are_equal():
    """Two completions of the same text were unequal wherever log-probabilities were asked for."""
    row = np.array([0.5, 2, 1, -1], np.float32)
    one, other = token_logprobs(row, 1, 2), token_logprobs(row.copy(), 1, 2)
    assert one == other
    assert hash(one) == hash(other)
    different = [
        token_logprobs(row, 0, 2),
        token_logprobs(row, 1, 3),
        token_logprobs(row + row, 1, 2),
    ]
    assert one not in [*different, None]


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
def test_damaged_logits_are_refused(damage):
    row = np.full(5, -np.inf if damage == -np.inf else 0.0, np.float32)
    row[3] = damage
    with pytest.raises(BackendError):
        token_logprobs(row, 1, 1)
