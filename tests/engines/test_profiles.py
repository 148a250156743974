from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.profiles import length_buckets, pick_bucket, round_up, trunk_rows


@given(st.integers(1, 300_000))
def test_buckets_rise_to_the_last_row_and_never_waste_more_than_half(rows: int) -> None:
    buckets = length_buckets(rows)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == rows
    assert len(buckets) < 64
    for needed in {1, rows, *buckets, *(min(size + 1, rows) for size in buckets)}:
        picked = pick_bucket(buckets, needed)
        assert needed <= picked <= max(64, 2 * needed)


def test_more_rows_than_the_largest_bucket_are_an_error() -> None:
    with pytest.raises(ValueError, match="97 cache rows needed, the largest bucket has 96"):
        pick_bucket(length_buckets(96), 97)


@given(st.integers(1, 100_000), st.integers(0, 16))
def test_the_trunk_holds_the_text_its_drafts_and_nothing_to_speak_of(
    max_len: int, num_draft: int
) -> None:
    rows = trunk_rows(max_len, num_draft)
    assert max_len + num_draft <= rows < max_len + num_draft + 16


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_round_up_is_the_next_multiple(value: int, step: int) -> None:
    rounded = round_up(value, step)
    assert rounded % step == 0
    assert value <= rounded < value + step
