from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.check.fidelity import compare, kl_divergence


def logits(seed: int, rows: int = 6, vocab: int = 11) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def test_equal_logits_have_no_difference() -> None:
    texts = [logits(0), logits(1)]
    figures = compare(texts, [text.copy() for text in texts], [2, 3])
    assert figures.num_prompts == 2
    assert figures.num_positions == 5 + 4
    assert figures.max_abs_difference == 0
    assert figures.top1_agreement == 1
    assert figures.mean_kl == 0
    assert figures.first_divergence is None


def test_the_first_divergence_has_its_place_both_ids_and_the_margin() -> None:
    reference = [logits(0), logits(1)]
    engine = [text.copy() for text in reference]
    order = np.argsort(reference[1][4])
    engine[1][4, order[-2]] = reference[1][4, order[-1]] + 1
    engine[1][5] += 1  # a shift of all logits changes no choice and no law
    figures = compare(reference, engine, [2, 3])
    first = figures.first_divergence
    assert first is not None
    assert (first.prompt, first.position) == (1, 5)  # row 4 predicts the token at position 5
    assert (first.reference_id, first.engine_id) == (order[-1], order[-2])
    margin = reference[1][4, order[-1]] - reference[1][4, order[-2]]
    assert first.margin == pytest.approx(margin)
    assert figures.top1_agreement == pytest.approx(8 / 9)
    assert figures.max_abs_difference == pytest.approx(1 + margin)


def test_prompt_positions_count_for_the_largest_difference_only() -> None:
    reference, engine = logits(0), logits(0)
    engine[0, 0] += 50
    figures = compare([reference], [engine], [3])
    assert figures.max_abs_difference == pytest.approx(50, rel=1e-5)
    assert figures.top1_agreement == 1
    assert figures.mean_kl == 0


@given(st.integers(0, 2**32 - 1), st.floats(0, 30))
def test_kl_is_that_of_the_textbook_and_ignores_shifts(seed: int, shift: float) -> None:
    left, right = logits(seed), logits(seed + 1)
    p = np.exp(left.astype(np.float64)) / np.exp(left.astype(np.float64)).sum(1, keepdims=True)
    q = np.exp(right.astype(np.float64)) / np.exp(right.astype(np.float64)).sum(1, keepdims=True)
    expected = (p * np.log(p / q)).sum(1)
    np.testing.assert_allclose(kl_divergence(left, right), expected, rtol=1e-9)
    moved = right + np.float32(shift)
    np.testing.assert_allclose(kl_divergence(left, moved), expected, rtol=1e-4, atol=1e-4)
