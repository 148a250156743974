"""What a row of the draft's notes of its text; what it drafts is the worker's business."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.kv.slots import SlotRef
from runtime.sampling.params import SamplingParams
from runtime.workers.draft_row import DraftRow, RowState
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind

K, LIMIT, STOP = 3, 8, 7


def row_of(*tokens: int) -> DraftRow:
    entry = Entry(tokens[:1], SamplingParams(), LIMIT, frozenset([STOP]))
    logits = np.zeros((K + 1, 9), np.float32)
    return DraftRow(SlotRef(0, 1), entry, logits, list(tokens), K, RowState.RUNNING)


@pytest.mark.parametrize(
    ("emitted", "goes_on"),
    [([1, 2], True), ([1, STOP], False), ([STOP, 2], False), ([1, 2, 3, 4, 5], False)],
)
def test_a_text_ends_at_a_stop_wherever_it_stands_and_at_its_limit(
    emitted: list[int], goes_on: bool
) -> None:
    row = row_of(1, 2, 3)
    assert row.follow(emitted, len(emitted) - 1) is goes_on
    assert row.state is (RowState.RUNNING if goes_on else RowState.OVER)


def test_a_dummy_behind_a_text_that_is_over_lies_in_the_cache() -> None:
    """It feeds one token at its trunk's end, and a call is as wide as its widest row."""
    row = row_of(*range(LIMIT - 1))
    row.trunk = LIMIT - 1
    row.follow([1], 0)
    assert row.trunk == LIMIT - 2


def test_a_rejection_takes_back_what_the_trunk_held_of_the_proposal() -> None:
    row = row_of(1, 2, 3)
    row.kind, row.proposal, row.trunk = Kind.JIT, (4, 5, 6), 5
    row.follow([4, 8], 1)
    assert (row.trunk, row.unfed) == (4, [8])
    assert (row.kind, row.proposal) == (Kind.NONE, ())
