"""Rows and masks of a slot, against the table in ``runtime.kv.layout`` spelt out row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engines.manifest import KvLayout
from engines.tensors import DType
from runtime.kv.layout import SlotLayout, branch_mask, trunk_mask


def make_layout(num_branches: int, num_draft: int, trunk_rows: int = 48) -> SlotLayout:
    kv = KvLayout(1, 1, 2, DType.FLOAT32, num_branches * num_draft, trunk_rows)
    return SlotLayout(kv, num_branches)


draft_layouts = st.builds(make_layout, st.integers(1, 6), st.integers(1, 5))
target_layouts = st.builds(make_layout, st.just(0), st.just(0))


def attended(mask_row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(mask_row).tolist())


def dirty_mask(num_tokens: int, rows: int, fill: bool) -> np.ndarray:
    """A mask as an earlier call may have left it: the arrays of a step are reused."""
    return np.full((num_tokens, rows), fill)


@given(draft_layouts)
def test_no_two_tokens_share_a_row(layout: SlotLayout) -> None:
    """A shared row would let one branch, or the text, overwrite another."""
    width, depths = layout.num_branches, layout.kv.scratch_rows // layout.num_branches
    scratch = [layout.scratch_row(depth) + j for depth in range(depths) for j in range(width)]
    trunk = [layout.trunk_row(position) for position in range(layout.kv.trunk_rows)]
    assert sorted(scratch + trunk) == list(range(layout.kv.rows))


@given(draft_layouts, st.data())
def test_a_branchs_rows_are_those_its_steps_wrote_in_order_of_depth(
    layout: SlotLayout, data: st.DataObject
) -> None:
    branch = data.draw(st.integers(0, layout.num_branches - 1))
    depth = data.draw(st.integers(1, layout.kv.scratch_rows // layout.num_branches))
    rows = range(layout.kv.rows)[layout.branch_rows(branch, depth)]
    assert list(rows) == [layout.scratch_row(step) + branch for step in range(depth)]


@given(st.one_of(draft_layouts, target_layouts), st.integers(0, 48))
def test_the_rows_to_bind_end_with_the_last_position(layout: SlotLayout, length: int) -> None:
    """One row fewer would drop the text's last token, which the next call attends."""
    assert layout.rows_for(length) == layout.trunk_row(length - 1) + 1


@given(
    st.one_of(draft_layouts, target_layouts), st.integers(0, 40), st.integers(1, 8), st.booleans()
)
def test_a_token_of_the_text_attends_the_text_up_to_itself_and_no_scratch_row(
    layout: SlotLayout, start: int, num_tokens: int, fill: bool
) -> None:
    mask = dirty_mask(num_tokens, layout.kv.rows, fill)
    trunk_mask(mask, layout, start)
    for token in range(num_tokens):
        expected = {layout.trunk_row(position) for position in range(start + token + 1)}
        assert attended(mask[token]) == expected


@given(draft_layouts, st.data(), st.booleans())
def test_a_branch_attends_its_own_prefix_and_itself_alone(
    layout: SlotLayout, data: st.DataObject, fill: bool
) -> None:
    """Fewer branches than the layout was made for keep its stride; padding branches attend
    something, since a row that is all False has no softmax."""
    used = data.draw(st.integers(1, layout.num_branches))
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=used))
    depth = data.draw(st.integers(0, layout.kv.scratch_rows // layout.num_branches - 1))
    mask = dirty_mask(used, layout.kv.rows, fill)
    padded = np.array([*lengths, *[0] * (used - len(lengths))])
    branch_mask(mask, layout, padded, depth)
    for branch in range(used):
        own = {layout.scratch_row(step) + branch for step in range(depth + 1)}
        length = lengths[branch] if branch < len(lengths) else 0
        prefix = {layout.trunk_row(position) for position in range(length)}
        assert attended(mask[branch]) == own | prefix


@given(draft_layouts, st.data())
def test_masks_of_many_rows_at_once_are_those_of_each_alone(
    layout: SlotLayout, data: st.DataObject
) -> None:
    batch, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    starts = np.array(data.draw(st.lists(st.integers(0, 40), min_size=batch, max_size=batch)))
    together = np.ones((batch, width, layout.kv.rows), bool)
    alone = np.zeros_like(together)
    trunk_mask(together, layout, starts)
    for row, start in enumerate(starts.tolist()):
        trunk_mask(alone[row], layout, start)
    np.testing.assert_array_equal(together, alone)

    depth = data.draw(st.integers(0, layout.kv.scratch_rows // layout.num_branches - 1))
    lengths = np.arange(batch * layout.num_branches).reshape(batch, -1)
    together = np.ones((batch, layout.num_branches, layout.kv.rows), bool)
    alone = np.zeros_like(together)
    branch_mask(together, layout, lengths, depth)
    for row in range(batch):
        branch_mask(alone[row], layout, lengths[row], depth)
    np.testing.assert_array_equal(together, alone)
