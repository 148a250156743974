"""The processed logits by plain sorting: their order of operations, and the runtime's own form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.law.reference import (
    Edits,
    LawParams,
    Sampling,
    adjusted,
    is_damaged,
    law,
    survivors,
)
from runtime.sampling import logits as runtime
from runtime.sampling.params import SamplingParams
from tests.helpers.sampling_cases import as_float32, float32, random_logits, random_params

INF = np.inf


def edits(ids, bias=None, generated=None, in_prompt=None) -> Edits:
    num = len(ids)
    return Edits(
        np.array(ids, np.int32),
        np.array(bias or [0] * num, np.float32),
        np.array(generated or [0] * num, np.int32),
        np.array(in_prompt or [False] * num),
    )


# Penalties and bias. ------------------------------------------------------------------------


def test_the_order_of_the_adjustments():
    """Id 0: 4 / 2 - 0.5 * 3 - 1 + 10. Another order gives another number at each step."""
    params = LawParams(repetition=2, frequency=0.5, presence=1)
    row = adjusted(
        np.array([4, -4, 4, 4], np.float32),
        params,
        edits([0, 1, 2], [10, 0, 3], [3, 1, 0], [0, 0, 1]),
    )
    assert row.tolist() == [4 / 2 - 1.5 - 1 + 10, -4 * 2 - 0.5 - 1, 4 / 2 + 3, 4]


def test_the_prompt_counts_for_the_repetition_penalty_alone():
    params = LawParams(repetition=2, frequency=0.5, presence=1)
    row = adjusted(np.array([4, 4], np.float32), params, edits([0], in_prompt=[True]))
    assert row.tolist() == [2, 4]


def test_drafts_before_the_row_count_as_generated():
    """S8: a penalty that waits for the commit lets a block repeat itself."""
    params = LawParams(repetition=1e9, frequency=0.25, presence=0.5)
    row = adjusted(
        np.array([4, 4, 4], np.float32), params, edits([1], generated=[1]), [1, 2, 1, -1, 7]
    )
    assert row.tolist() == [4, np.float32(4e-9) - 0.75 - 0.5, np.float32(4e-9) - 0.25 - 0.5]


def test_each_step_rounds_to_float32():
    params = LawParams(frequency=float32(0.1), presence=float32(0.3))
    row = adjusted(np.array([1 / 3], np.float32), params, edits([0], [0.7], [3]))
    expected = np.float32(1 / 3) - np.float32(0.1) * np.float32(3)
    expected = (expected - np.float32(0.3)) + np.float32(0.7)
    assert row.dtype == np.float32
    assert row[0] == expected


def test_the_padded_tail_is_masked_whatever_stands_there():
    logits = np.array([1, 2, np.nan, INF], np.float32)
    row = adjusted(logits, LawParams(), Edits(), vocab_size=2)
    assert row.tolist() == [1, 2, -INF, -INF]
    assert logits[3] == INF, "the engine's logits are not ours to change"


def test_a_bias_of_minus_infinity_forbids():
    row = adjusted(np.array([9, 1], np.float32), LawParams(), edits([0], [-INF]))
    assert law(row, LawParams()).tolist() == [0, 1]


def test_a_ban_holds_before_its_position_and_beats_every_bias():
    """Ids outside the vocabulary, as a padded target may name them, do not count."""
    sampling = Sampling(
        edits=edits([1], [5.0]), first_position=7, banned_ids=(1, 3, -1), banned_before=8
    )
    row = np.array([1, 2, 3], np.float32)
    before, after = (
        adjusted(row, sampling.params, sampling.edits, banned=sampling.banned_at(position))
        for position in (7, 8)
    )
    assert before.tolist() == [1, -INF, 3]
    assert after.tolist() == [1, 7, 3]


@pytest.mark.parametrize("damage", [[np.nan, 0], [INF, 0], [-INF, -INF]])
def test_a_row_without_a_law_is_damaged(damage):
    assert is_damaged(np.array(damage, np.float32))
    assert not is_damaged(np.array([-INF, -3e38], np.float32))


# The cuts. ----------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    vocab_size=st.integers(1, 300),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_the_runtime_keeps_the_same_ids_and_has_the_same_law(seed, vocab_size, dtype):
    """Plain sorting against the runtime's bounds: two ways to one meaning."""
    rng = np.random.default_rng(seed)
    row = as_float32(random_logits(rng, (vocab_size,), dtype))
    if is_damaged(row):
        return
    params = random_params(rng)
    theirs = SamplingParams(params.temperature, params.top_k, params.top_p, 0, params.min_p)
    kept = runtime.survivors(row, theirs)
    expected = np.arange(vocab_size) if kept is None else kept
    np.testing.assert_array_equal(survivors(row, params), expected)
    np.testing.assert_allclose(law(row, params), runtime.law(row, theirs), rtol=1e-12, atol=1e-300)


def test_equal_logits_at_the_cut_leave_the_lower_ids():
    row = np.array([1, 0, 1, 0, 0], np.float32)
    assert survivors(row, LawParams(temperature=1, top_k=3)).tolist() == [0, 1, 2]


def test_greedy_cuts_nothing_and_takes_the_lowest_of_the_best():
    params = LawParams(top_k=1, top_p=0.1, min_p=1)
    row = np.array([0, 2, 2], np.float32)
    assert survivors(row, params).tolist() == [0, 1, 2]
    assert law(row, params).tolist() == [0, 1, 0]
