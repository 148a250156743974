"""The formulas of ``runtime.kv.capacity`` against the calls that the runtime makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError
from engines.manifest import DRAFT, Limits
from engines.profiles import PROMPT_STEP, round_up, trunk_rows
from runtime.backends.toy import toy_manifest
from runtime.kv.capacity import least_trunk_rows, most_drafts, require_capacity

LENGTHS, DEPTHS = st.integers(1, 300), st.integers(0, 16)


@given(LENGTHS, DEPTHS, st.data())
def test_no_call_of_a_running_text_reaches_past_the_trunk(
    max_len: int, num_draft: int, data: st.DataObject
) -> None:
    """The table row by row, for a text of any length and any limit (E13)."""
    limit = data.draw(st.integers(1, max_len))
    length = data.draw(st.integers(1, max(1, limit - 1)))
    drafted = most_drafts(length, limit, num_draft)
    width = max(num_draft + 1, 2)
    rows = least_trunk_rows(max_len, num_draft)
    assert drafted <= num_draft
    if max_len > 1:
        assert length + drafted <= max_len - 1
        assert length - 1 + width <= rows  # verify, and a dummy at that frontier
        last_root = length + drafted - 1  # the last token of the proposal at the earliest
        assert last_root + num_draft + 1 <= rows or num_draft == 0
        assert round_up(length - 1, PROMPT_STEP) <= rows
    assert rows <= trunk_rows(max_len, num_draft)


@pytest.mark.parametrize(
    ("length", "limit", "expected"), [(1, 100, 4), (95, 100, 4), (96, 100, 3), (99, 100, 0)]
)
def test_drafts_are_cut_where_the_text_has_to_end(length, limit, expected) -> None:
    """With r tokens left, r - 1 drafts and the bonus token fill the text."""
    assert most_drafts(length, limit, 4) == expected


def test_capacity_is_that_of_one_sequence_and_grows_with_the_slots() -> None:
    """K2: a draft's context was sized by the total instead of per sequence."""
    for num_slots in (1, 4):
        kv = toy_manifest(DRAFT, 8, 8, Limits(1024, num_slots, 4, 8)).kv
        assert kv.trunk_rows >= 1024 + 4 - 1
        assert kv.scratch_rows == 4 * 8
        assert kv.bytes_for(num_slots) == num_slots * kv.rows * kv.bytes_per_row


@pytest.mark.parametrize(
    ("num_draft", "num_branches", "message"),
    [
        (5, 8, "5 drafted tokens asked for.*built for 4.*--num-draft 5"),
        (4, 9, "9 branches asked for.*built for 8.*--max-branches 9"),
    ],
)
def test_more_than_was_built_is_refused_with_the_option_that_helps(
    num_draft, num_branches, message
) -> None:
    manifest = toy_manifest(DRAFT, 8, 8, Limits(64, 1, 4, 8))
    with pytest.raises(CapacityError, match=message):
        require_capacity(
            manifest.kv, manifest.limits, num_draft=num_draft, num_branches=num_branches
        )
    require_capacity(manifest.kv, manifest.limits, num_draft=4, num_branches=8)


def test_caches_that_are_too_small_for_their_own_limits_are_refused() -> None:
    manifest = toy_manifest(DRAFT, 8, 8, Limits(64, 1, 4, 8))
    small = toy_manifest(DRAFT, 8, 8, Limits(32, 1, 4, 8))
    with pytest.raises(CapacityError, match="64 trunk and 32 scratch rows a slot, 67 and 32"):
        require_capacity(small.kv, manifest.limits, num_draft=4, num_branches=8)
