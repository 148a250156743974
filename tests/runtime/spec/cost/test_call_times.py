"""Times of calls between and beyond the shapes that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost.times import ByTokens, Grid, PairTimes


def test_one_point_is_a_constant() -> None:
    assert ByTokens((8,), (0.015,)).seconds(4, 100) == 0.015
    assert Grid((1,), (8,), ((0.015,),)).seconds(4, 100) == 0.015


def test_a_curve_goes_through_its_points_and_straight_between_them() -> None:
    curve = ByTokens((8, 128), (0.015, 0.021))
    assert curve.seconds(1, 8) == 0.015
    assert curve.seconds(16, 8) == 0.021
    assert curve.seconds(17, 4) == pytest.approx(0.018)


def test_what_lies_before_the_first_point_is_not_cheaper_than_it() -> None:
    """A verification of one token reads the same weights."""
    assert ByTokens((8, 128), (0.015, 0.021)).seconds(1, 1) == 0.015


def test_beyond_the_last_point_the_last_slope_goes_on() -> None:
    curve = ByTokens((8, 16, 24), (0.010, 0.010, 0.012))
    assert curve.seconds(1, 32) == pytest.approx(0.014)
    falling = ByTokens((8, 16), (0.010, 0.009))
    assert falling.seconds(1, 800) == pytest.approx(0.009)


def test_a_published_curve_is_met_between_its_ends() -> None:
    """Verification of 8 tokens a row at batch 1 to 16, 70B on four H100: milliseconds."""
    curve = ByTokens((8, 128), (15.0, 20.2))
    published = {1: 15.0, 2: 15.5, 4: 16.1, 8: 17.6, 16: 20.2}
    for rows, measured in published.items():
        assert curve.seconds(rows, 8) == pytest.approx(measured, rel=0.02)


def test_a_grid_tells_rows_from_tokens() -> None:
    """Four rows of one token read four caches, one row of four reads one."""
    grid = Grid((1, 4), (1, 5), ((0.010, 0.014), (0.020, 0.040)))
    assert grid.seconds(1, 5) == 0.014
    assert grid.seconds(4, 1) == 0.020
    assert grid.seconds(1, 3) == pytest.approx(0.012)
    assert grid.seconds(2, 1) == pytest.approx(0.010 + 0.010 / 3)
    assert grid.seconds(3, 3) == pytest.approx(0.012 + 2 / 3 * (0.030 - 0.012))
    assert grid.seconds(7, 5) == pytest.approx(0.066)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 8), st.integers(0, 8))
def test_more_work_never_takes_less_where_measurements_rise(
    rows: int, tokens: int, more_rows: int, more_tokens: int
) -> None:
    grid = Grid((1, 4, 16), (1, 5), ((1.0, 1.5), (1.2, 3.0), (2.0, 9.0)))
    wider = grid.seconds(rows + more_rows, tokens + more_tokens)
    assert wider >= grid.seconds(rows, tokens) - 1e-9


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [
        ((), ()),
        ((0,), (1.0,)),
        ((2, 2), (1.0, 1.0)),
        ((2, 1), (1.0, 1.0)),
        ((1, 2), (1.0,)),
        ((1,), (-1.0,)),
        ((1,), (float("nan"),)),
        ((1,), (1e9,)),
    ],
)
def test_a_curve_that_cannot_be_is_refused(
    tokens: tuple[int, ...], seconds: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match="expected"):
        ByTokens(tokens, seconds)
    with pytest.raises(ValueError, match="expected"):
        Grid((1,), tokens, (seconds,))


def test_a_grid_has_a_line_for_each_of_its_rows() -> None:
    with pytest.raises(ValueError, match="2 rows, but times of 1"):
        Grid((1, 2), (1,), ((1.0,),))


def test_two_devices_do_not_slow_each_other_down() -> None:
    target, draft = ByTokens((1,), (0.02,)), ByTokens((1,), (0.002,))
    times = PairTimes.apart(target, draft, 0.001)
    assert (times.target, times.target_beside) == (target, target)
    assert (times.draft, times.draft_beside, times.exchange_s) == (draft, draft, 0.001)
