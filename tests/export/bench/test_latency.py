from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.bench.latency import percentile, summarise

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=200)


@given(TIMES, st.floats(0, 100))
def test_percentiles_are_numpys(times: list[float], percent: float) -> None:
    assert percentile(times, percent) == pytest.approx(np.percentile(times, percent), rel=1e-9)


@given(TIMES)
def test_the_summary_is_in_order_and_does_not_depend_on_the_order_of_the_times(
    times: list[float],
) -> None:
    found = summarise(times)
    assert found.iterations == len(times)
    assert found.min_s <= found.p50_s <= found.p90_s <= found.p99_s <= max(times)
    assert found.mean_s == pytest.approx(np.mean(times))
    assert summarise(times[::-1]) == found


def test_a_percentile_between_two_times_lies_between_them_in_proportion() -> None:
    assert percentile([4.0, 1.0], 75) == 3.25


@pytest.mark.parametrize(("times", "percent"), [([], 50), ([1.0], -1), ([1.0], 100.1)])
def test_no_times_or_no_percent_is_an_error(times: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match=r"no .*th percentile"):
        percentile(times, percent)
