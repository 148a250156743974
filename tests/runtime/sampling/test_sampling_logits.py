"""Top-k, top-p, min-p and the law they leave, against their definitions by full sorting."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engines.errors import BackendError
from runtime.sampling.logits import (
    best_survivor,
    law,
    process,
    survivors,
    top_ids,
    top_survivors,
    without_banned,
)
from runtime.sampling.params import SamplingParams

INF = np.float32(np.inf)

# Few distinct values make ties; -inf is a masked token.
tied_rows = hnp.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.sampled_from([-np.inf, -3.0, -1.0, 0.0, 0.5, 1.0, 2.0]),
).filter(lambda row: row.max() > -np.inf)
smooth_rows = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-20, 20, width=32))
rows = tied_rows | smooth_rows
temperatures = st.sampled_from([1e-6, 0.1, 0.7, 1.0, 3.0])


def ranked(row: np.ndarray) -> list[int]:
    """All ids, largest logit first, lower ids first among equal ones."""
    return sorted(range(row.size), key=lambda i: (-row[i], i))


def exact_softmax(row: np.ndarray, temperature: float) -> np.ndarray:
    peak = float(row.max())
    weights = np.array([math.exp((float(value) - peak) / temperature) for value in row])
    return weights / math.fsum(weights)


def kept_ids(row: np.ndarray, params: SamplingParams) -> list[int]:
    ids = survivors(row, params)
    return list(range(row.size)) if ids is None else ids.tolist()


# --- ranking ---


@given(row=rows, num=st.integers(0, 320))
def test_top_ids_rank_like_a_full_sort(row, num):
    assert top_ids(row, num).tolist() == ranked(row)[:num]


@pytest.mark.parametrize("vocab", [64, 127, 4096, 5000])
@pytest.mark.parametrize("num", [1, 2, 50, 64])
def test_top_ids_find_what_lies_outside_the_groups_or_all_in_one(vocab, num):
    """The lower bound comes from groups of ids; where the top ids sit must not matter."""
    rng = np.random.default_rng(vocab + num)
    step = max(vocab // 64, 1)
    for special in (np.arange(vocab)[-num:], (np.arange(num) * step) % vocab, np.arange(num)):
        row = rng.standard_normal(vocab).astype(np.float32)
        row[special] += 10
        assert top_ids(row, num).tolist() == ranked(row)[:num]


# --- the cuts ---


@given(row=rows, top_k=st.integers(1, 310), temperature=temperatures)
def test_top_k_keeps_exactly_k_lower_ids_first(row, top_k, temperature):
    params = SamplingParams(temperature=temperature, top_k=top_k)
    assert kept_ids(row, params) == sorted(ranked(row)[:top_k])


@given(row=rows, top_p=st.floats(1e-12, 1, exclude_max=True), temperature=temperatures)
def test_top_p_keeps_the_fewest_most_likely_ids_that_reach_the_mass(row, top_p, temperature):
    kept = kept_ids(row, SamplingParams(temperature=temperature, top_p=top_p))
    order = ranked(row)
    assert kept == sorted(order[: len(kept)])
    mass = exact_softmax(row, temperature)[order].cumsum()
    rounding = 1e-6  # the cut is found in float32
    assert mass[len(kept) - 1] >= top_p - rounding
    assert len(kept) == 1 or mass[len(kept) - 2] < top_p + rounding


@given(row=rows, min_p=st.floats(1e-6, 1), temperature=temperatures)
def test_min_p_keeps_what_is_likely_enough_relative_to_the_peak(row, min_p, temperature):
    kept = set(kept_ids(row, SamplingParams(temperature=temperature, min_p=min_p)))
    probs = exact_softmax(row, temperature)
    gap = np.log(np.maximum(probs / probs.max(), 1e-300)) - math.log(min_p)
    rounding = 1e-5 / temperature
    assert kept >= set(np.flatnonzero(gap > rounding))
    assert kept <= set(np.flatnonzero(gap > -rounding))
    assert int(row.argmax()) in kept


@given(
    row=rows,
    temperature=temperatures,
    cuts=st.tuples(st.integers(1, 50), st.floats(0.05, 0.95), st.floats(0.01, 1)),
)
def test_cuts_together_apply_in_the_documented_order(row, temperature, cuts):
    """top_p sees the law renormalised over the top_k, min_p cuts what both leave."""
    top_k, top_p, min_p = cuts
    top = sorted(ranked(row)[:top_k])
    inner = kept_ids(row[top], SamplingParams(temperature=temperature, top_p=top_p))
    after_top_p = {top[i] for i in inner}
    after_min_p = set(kept_ids(row, SamplingParams(temperature=temperature, min_p=min_p)))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(kept_ids(row, params)) == after_top_p & after_min_p


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1, top_k=2), [0, 1]),
        (SamplingParams(temperature=1, top_p=0.5), [0, 1]),
        (SamplingParams(temperature=1, top_p=0.51), [0, 1, 2]),
        (SamplingParams(temperature=1, top_p=1e-300), [0]),
        (SamplingParams(temperature=1, min_p=1.0), [0, 1, 2, 3]),
    ],
)
def test_equal_logits_at_a_cut(params, kept):
    assert kept_ids(np.ones(4, np.float32), params) == kept


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 12.0])
def test_nucleus_of_a_full_vocabulary_equals_full_sorting(top_p, spread):
    row = (np.random.default_rng(1).standard_normal(49152) * spread).astype(np.float32)
    order = np.lexsort((np.arange(row.size), -row))
    mass = exact_softmax(row, 0.8)[order].cumsum()
    num = int(np.searchsorted(mass, top_p)) + 1
    kept = kept_ids(row, SamplingParams(temperature=0.8, top_p=top_p))
    assert abs(len(kept) - num) <= (1 if spread == 0 else 0)
    assert kept == sorted(order[: len(kept)])


# --- shortcuts to the same answer ---

cuts = st.builds(
    SamplingParams,
    temperature=temperatures,
    top_k=st.sampled_from([0, 1, 4, 70, 10**6]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 1e-3, 0.1, 0.6]),
)


@given(row=rows, params=cuts, num=st.integers(0, 320))
def test_the_first_survivors_are_those_of_the_whole_cut(row, params, num):
    kept = set(kept_ids(row, params))
    expected = [token for token in ranked(row) if token in kept][:num]
    assert top_survivors(row, params, num).tolist() == expected


@given(row=rows, params=cuts, seed=st.integers(0, 999))
def test_the_best_survivor_is_the_best_of_the_whole_cut(row, params, seed):
    """The highest score is often that of an id which is cut, many in a row with it."""
    scores = np.random.default_rng(seed).gumbel(size=row.size).astype(np.float32) * 3 + row
    kept = np.array(kept_ids(row, params))
    assert best_survivor(scores.copy(), row, params) == kept[scores[kept].argmax()]


def test_of_equal_scores_the_lowest_surviving_id_is_best():
    row = np.array([0, 2, 2, 2, 1], np.float32)
    scores = np.array([9, 1, 1, 1, 9], np.float32)
    assert best_survivor(scores, row, SamplingParams(temperature=1, top_p=0.8)) == 1


def test_masked_ids_are_never_the_best_survivor():
    row = np.array([-np.inf, 1, -np.inf, 0], np.float32)
    for cut in ({"top_p": 0.99}, {"min_p": 1e-9}, {"top_k": 3}):
        for seed in range(50):
            noise = np.random.default_rng(seed).gumbel(size=4).astype(np.float32)
            params = SamplingParams(temperature=1, **cut)
            assert best_survivor(row + noise, row, params) in (1, 3)


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_shortcuts_refuse_damaged_rows(damage, cut):
    row = np.full(200, -np.inf if damage == -np.inf else 0.0, np.float32)
    row[150] = damage
    params = SamplingParams(temperature=1, **cut)
    for call in (lambda: top_survivors(row, params, 3), lambda: best_survivor(row, row, params)):
        with pytest.raises(BackendError, match="largest logit of a row"):
            call()


# --- bans ---

BANNED = SamplingParams(temperature=1, banned_ids=(3, 1, 99), banned_before=10)


def test_banned_ids_have_no_mass_before_their_position_and_theirs_from_it_on():
    row = np.arange(5, dtype=np.float32)
    before = row.copy()
    masked = without_banned(row, BANNED, 9)
    assert np.flatnonzero(np.isneginf(masked)).tolist() == [1, 3]
    assert masked[[0, 2, 4]].tolist() == [0, 2, 4]
    np.testing.assert_array_equal(row, before)
    assert without_banned(row, BANNED, 10) is row
    assert without_banned(row, SamplingParams(), 0) is row


def test_bans_are_in_target_ids_also_for_a_draft_of_fewer():
    row = np.zeros(4, np.float32)
    masked = without_banned(row, BANNED, 0, np.array([8, 3, 99, 2]))
    assert np.flatnonzero(np.isneginf(masked)).tolist() == [1, 2]


def test_a_draft_that_knows_only_banned_ids_still_has_a_law():
    """Its drafts are rejected; a row without any mass would be an error."""
    row = np.zeros(2, np.float32)
    assert without_banned(row, BANNED, 0, np.array([1, 3])) is row


def test_a_target_with_every_id_banned_is_refused():
    params = SamplingParams(banned_ids=(0, 1), banned_before=5)
    row = without_banned(np.zeros(2, np.float32), params, 0)
    with pytest.raises(BackendError, match="every token is masked"):
        law(row, SamplingParams())


# --- process ---


@given(row=rows, params=st.sampled_from([{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}]))
def test_process_masks_the_others_and_leaves_the_rest_and_its_input_alone(row, params):
    before = row.copy()
    wanted = SamplingParams(temperature=0.7, **params)
    processed = process(row, wanted)
    assert processed.dtype == np.float32
    kept = kept_ids(row, wanted)
    assert (processed[kept] == row[kept]).all()
    assert (np.delete(processed, kept) == -INF).all()
    np.testing.assert_array_equal(row, before)


@pytest.mark.parametrize(
    "params",
    [SamplingParams(temperature=0.8), SamplingParams(top_k=1, top_p=0.1, min_p=0.9)],
    ids=["no cut", "greedy"],
)
def test_process_copies_nothing_when_nothing_is_cut(params):
    logits = np.zeros((2, 3, 8), np.float32)
    assert process(logits, params) is logits


def test_rows_of_a_block_are_cut_independently():
    """S7: a cut applied to the bonus row alone lets tokens through at the other rows."""
    logits = np.random.default_rng(2).standard_normal((2, 5, 90)).astype(np.float32)
    params = SamplingParams(temperature=0.9, top_k=7, top_p=0.9, min_p=0.05)
    processed, laws = process(logits, params), law(logits, params)
    assert processed.shape == laws.shape == logits.shape
    for index in np.ndindex(2, 5):
        np.testing.assert_array_equal(processed[index], process(logits[index], params))
        np.testing.assert_array_equal(laws[index], law(logits[index], params))


# --- the law ---


@given(row=rows, temperature=temperatures, top_k=st.integers(0, 60))
def test_law_is_the_softmax_of_what_survives(row, temperature, top_k):
    params = SamplingParams(temperature=temperature, top_k=top_k)
    kept = kept_ids(row, params)
    expected = np.zeros(row.size)
    expected[kept] = exact_softmax(row[kept], temperature)
    probs = law(row, params)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs, expected, rtol=1e-12, atol=1e-300)
    assert abs(probs.sum() - 1) < 1e-12


@given(row=rows)
def test_greedy_law_is_a_point_at_the_lowest_best_id(row):
    probs = law(row, SamplingParams())
    assert np.flatnonzero(probs).tolist() == [ranked(row)[0]]
    assert probs.max() == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_tiny_temperatures_do_not_overflow_into_nan(temperature):
    """G6: dividing logits by a temperature near 0 overflows."""
    row = np.array([1, 3, -np.inf, 3, 2.5], np.float32)
    for cut in ({}, {"top_k": 4}, {"top_p": 0.99}, {"min_p": 1e-300}):
        probs = law(row, SamplingParams(temperature=temperature, **cut))
        np.testing.assert_array_equal(probs, [0, 0.5, 0, 0.5, 0])


@pytest.mark.parametrize("cut", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.5}])
def test_huge_temperature_is_uniform_over_what_is_not_masked(cut):
    row = np.array([1, 3, -np.inf, 2], np.float32)
    np.testing.assert_allclose(
        law(row, SamplingParams(temperature=1e308, **cut)), [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-12
    )


def test_law_stays_in_the_nucleus_at_low_temperature():
    """S3: cutting by the law at temperature 1 keeps tokens the request's law excludes."""
    row = np.log([0.4, 0.35, 0.25]).astype(np.float32)
    assert np.flatnonzero(law(row, SamplingParams(temperature=0.1, top_p=0.5))).tolist() == [0]
    assert np.flatnonzero(law(row, SamplingParams(temperature=1.0, top_p=0.5))).tolist() == [0, 1]


@given(row=smooth_rows, low=st.floats(0.05, 0.9), high=st.floats(0.05, 0.9))
@settings(max_examples=50)
def test_a_larger_top_p_never_keeps_less(row, low, high):
    assume(low < high)
    kept = [set(kept_ids(row, SamplingParams(temperature=1, top_p=p))) for p in (low, high, 1)]
    assert all(smaller <= larger for smaller, larger in pairwise(kept))


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str
)
def test_damaged_rows_are_refused_not_sampled(damage, params):
    """One NaN, one +inf, or every token masked: none of these is a law."""
    row = np.full(200, -np.inf if damage == -np.inf else 0.0, np.float32)
    row[150] = damage
    with pytest.raises(BackendError, match="largest logit of a row"):
        law(row, SamplingParams(**{"temperature": 1.0, **params}))
