from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.profiles import (
    PROMPT_CHUNK,
    PROMPT_STEP,
    ShapeProfile,
    length_buckets,
    pick_bucket,
    round_up,
    shape_profiles,
    trunk_rows,
)


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
    assert max_len + num_draft <= rows < max(65, max_len + num_draft + 16)
    assert rows % 16 == 0


limits = {
    "role": st.sampled_from(["target", "draft"]),
    "max_len": st.integers(2, 3000),
    "max_batch": st.integers(1, 64),
    "num_draft": st.integers(0, 16),
    "max_branches": st.integers(0, 64),
}


def profiles_for(
    role: str, max_len: int, max_batch: int, num_draft: int, max_branches: int
) -> tuple[dict[str, ShapeProfile], int]:
    """Profiles by name, and the rows of the cache they are for."""
    rows = trunk_rows(max_len, num_draft) + (role == "draft") * num_draft * max_branches
    found = shape_profiles(
        role, max_batch=max_batch, num_draft=num_draft, max_branches=max_branches, rows=rows
    )
    return {profile.name: profile for profile in found}, rows


@given(**limits)
def test_every_call_that_the_limits_allow_has_a_profile(
    role: str, max_len: int, max_batch: int, num_draft: int, max_branches: int
) -> None:
    profiles, rows = profiles_for(role, max_len, max_batch, num_draft, max_branches)
    block = {"tokens": num_draft + 1, "logits": num_draft + 1, "length": rows}
    name = "verify" if role == "target" and num_draft else "step"
    assert profiles[name].holds(batch=max_batch, **block)
    assert profiles["step"].holds(batch=1, tokens=1, logits=1, length=1)
    for tokens in range(PROMPT_STEP, PROMPT_CHUNK + 1, PROMPT_STEP):
        assert profiles["prompt"].holds(batch=1, tokens=tokens, logits=1, length=rows)
        assert profiles["prompt"].holds(batch=1, tokens=tokens, logits=tokens, length=rows)
    for width in range(1, max_branches + 1) if role == "draft" and num_draft else ():
        for batch in (1, max_batch):
            assert profiles["branch"].holds(batch=batch, tokens=width, logits=width, length=rows)


@given(**limits)
def test_no_profile_is_one_that_tensorrt_rtx_fails_on(
    role: str, max_len: int, max_batch: int, num_draft: int, max_branches: int
) -> None:
    """Longer writes than the cache has rows crash it, narrow ranges of L stop it, and with B
    fixed in one profile and free in another it stores matrices twice."""
    profiles, rows = profiles_for(role, max_len, max_batch, num_draft, max_branches)
    assert rows > 32
    for profile in profiles.values():
        assert profile.tokens.most <= rows
        assert (profile.length.least, profile.length.most) == (1, rows)
        assert profile.batch.most <= max_batch
    assert len({profile.batch.least == profile.batch.most for profile in profiles.values()}) == 1


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_round_up_is_the_next_multiple(value: int, step: int) -> None:
    rounded = round_up(value, step)
    assert rounded % step == 0
    assert value <= rounded < value + step
