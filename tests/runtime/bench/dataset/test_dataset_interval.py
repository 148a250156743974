"""Intervals: seeded, paired, and as wide as the prompts scatter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.dataset.interval import bootstrap, median_interval, total_ratio_interval

pairs = st.lists(
    st.tuples(st.integers(1, 100), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=12
)


def work(tokens: list[int], seconds: list[float]) -> np.ndarray:
    return np.asarray(list(zip(tokens, seconds, strict=True)), np.float64)


def test_one_prompt_says_nothing_of_others() -> None:
    assert median_interval(np.asarray([1.5])) is None
    assert median_interval(np.asarray([])) is None
    assert total_ratio_interval(work([3], [1.0]), work([3], [2.0])) is None


def test_equal_prompts_leave_no_doubt() -> None:
    found = median_interval(np.full(5, 1.25))
    assert found is not None
    assert (found.low, found.high) == (1.25, 1.25)


def test_a_prompt_is_drawn_for_both_at_once() -> None:
    """Prompts differ tenfold, the ratio never: unpaired draws would call that noise."""
    seconds = [0.5, 5.0, 1.0, 3.0]
    ours, plain = work([10] * 4, seconds), work([10] * 4, [2 * each for each in seconds])
    found = total_ratio_interval(ours, plain)
    assert found is not None
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)


def test_the_same_figures_give_the_same_interval() -> None:
    values = np.random.default_rng(1).normal(1, 0.1, 20)
    assert median_interval(values) == median_interval(values.copy())


@given(pairs)
def test_the_figure_lies_between_the_extremes_of_its_interval(rows) -> None:
    tokens, ours, plain = map(list, zip(*rows, strict=True))
    found = total_ratio_interval(work(tokens, ours), work(tokens, plain))
    ratios = [theirs / mine for mine, theirs in zip(ours, plain, strict=True)]
    assert found is not None
    assert min(ratios) * 0.999 <= found.low <= found.high <= max(ratios) * 1.001


@pytest.mark.stat
def test_the_interval_covers_as_often_as_it_says() -> None:
    """200 data sets of 40 prompts. The percentile bootstrap of a mean covers about 94 % then: fewer
    than 176 of 200 has a probability below 1e-3, and the seeds are fixed."""
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        sample = random.normal(1.0, 0.2, 40)
        found = bootstrap(40, lambda draws, sample=sample: sample[draws].mean(axis=1))
        assert found is not None
        covered += found.low <= 1.0 <= found.high
    assert 176 <= covered < 200
