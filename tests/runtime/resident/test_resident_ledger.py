"""What the host knows of rows that are device memory: a bound of each length."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError
from runtime.kv.slots import SlotRef
from runtime.resident.ledger import Ledger
from runtime.sampling.params import SamplingParams
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind

SLOT = SlotRef(1, 7)


def entry(num_prompt: int, limit: int = 1000) -> Entry:
    return Entry([1] * num_prompt, SamplingParams(), limit)


def outcome(accepted: int, *, generation: int = 7, kind: Kind = Kind.HIT) -> list[list[int]]:
    """Of slot 1 in a batch of two, the other one a dummy."""
    return [[0, Kind.SKIP, 0, 0, 0], [generation, kind, accepted, accepted, 0]]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30),
    st.integers(1, 5),
    st.integers(20, 60),
)
def test_the_bound_of_a_length_is_never_below_it(rounds, num_prompt: int, limit: int) -> None:
    """Whenever the outcomes are read; too low a bound would write behind the bound rows."""
    ledger, length, unread = Ledger(2), num_prompt, []
    numbers = count(1)
    row = ledger.admit(SLOT, entry(num_prompt, limit))
    ledger.fed(row, num_prompt - 1)
    for accepted, reads in rounds:
        assert ledger.most >= length
        assert ledger.most <= max(num_prompt, limit - 1)
        if length + accepted + 1 >= limit:
            break
        number = next(numbers)
        ledger.queue_round(number, 5)
        length += accepted + 1
        unread.append((number, outcome(accepted)))
        if reads:
            ledger.note_read(*unread.pop(0))
            ledger.learn()
    while unread:
        ledger.note_read(*unread.pop(0))
    ledger.learn()
    assert ledger.most == length


@pytest.mark.parametrize(
    "rows",
    [outcome(3, generation=6), outcome(3, kind=Kind.SKIP)],
    ids=["last holder", "not judged"],
)
def test_what_concerns_another_text_is_not_learnt(rows) -> None:
    ledger = Ledger(2)
    ledger.admit(SLOT, entry(1))
    ledger.queue_round(1, 5)
    ledger.note_read(1, rows)
    ledger.learn()
    assert ledger.most == 1 + 5


def test_leases_are_checked() -> None:
    """Two texts in one slot would overwrite each other's rows."""
    ledger = Ledger(3)
    ledger.admit(SLOT, entry(1))
    assert ledger.num_rows == 2
    with pytest.raises(CapacityError, match="before lease 7 was retired"):
        ledger.admit(SlotRef(1, 8), entry(1))
    with pytest.raises(CapacityError, match="lease 6 of slot 1 is over"):
        ledger.retire(SlotRef(1, 6))
    ledger.move(SLOT, SlotRef(0, 9))
    assert ledger.num_rows == 1
    ledger.retire(SlotRef(0, 9))
    assert ledger.num_rows == 0


def test_rounds_before_a_reset_are_forgotten() -> None:
    """Their outcomes are read by nobody; counted, every later one would be taken for another."""
    ledger = Ledger(2)
    ledger.admit(SLOT, entry(1))
    ledger.queue_round(1, 5)
    ledger.note_read(1, outcome(4))
    ledger.reset()
    ledger.admit(SLOT, entry(1))
    ledger.queue_round(2, 2)
    ledger.note_read(2, outcome(1))
    ledger.learn()
    assert ledger.most == 3


def test_a_round_that_nobody_read_is_not_taken_for_the_next() -> None:
    """The last text of a round may end while another's prompt is fed: the round is left unread.
    Its width counted for the next round, the bound would fall below the length."""
    ledger = Ledger(2)
    ledger.queue_round(1, 5)
    ledger.admit(SLOT, entry(1))
    ledger.queue_round(2, 1)
    ledger.note_read(2, outcome(0))
    ledger.learn()
    assert ledger.most == 2
    ledger.queue_round(3, 5)
    assert ledger.most == 2 + 5


def test_a_round_may_be_read_before_this_side_has_queued_it() -> None:
    """The draft's thread may be feeding a prompt when the target has judged already. Its tokens
    forgotten, the bound would be too low for good."""
    ledger = Ledger(2)
    ledger.admit(SLOT, entry(1))
    ledger.note_read(1, outcome(4))
    ledger.learn()
    assert ledger.most == 1
    ledger.queue_round(1, 5)
    ledger.learn()
    assert ledger.most == 1 + 5
    ledger.queue_round(2, 2)
    assert ledger.most == 1 + 5 + 2


def test_what_was_read_before_a_move_concerns_the_old_slot() -> None:
    """Looked up in the new one, it would be nobody's, and the bound would stay too high."""
    ledger = Ledger(2)
    ledger.admit(SLOT, entry(1))
    ledger.queue_round(1, 5)
    ledger.note_read(1, outcome(0))
    ledger.move(SLOT, SlotRef(0, 9))
    ledger.learn()
    assert ledger.most == 2
