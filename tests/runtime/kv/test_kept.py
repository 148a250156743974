"""What free slots keep: whatever is seated, moved, released and forgotten, a lease is promised what
its slot's rows hold, and nothing is lost that need not be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from engines.errors import CapacityError
from runtime.kv.kept import BLOCK, Kept, Shift, as_tokens, num_usable
from runtime.kv.slots import SlotPool, SlotRef

TOKENS = st.lists(st.integers(0, 1), max_size=4 * BLOCK)
TEXTS = st.builds(
    lambda times, tail: [7] * (times * BLOCK) + tail,
    st.integers(0, 3),
    st.lists(st.integers(0, 1), max_size=BLOCK + 2),
)


def naive_usable(prompt: list[int], held: list[int]) -> int:
    common = 0
    while common < min(len(prompt) - 1, len(held)) and prompt[common] == held[common]:
        common += 1
    return common // BLOCK * BLOCK


@given(TEXTS.filter(len), TEXTS)
def test_whole_blocks_of_the_common_beginning_are_usable_but_never_the_last_token(
    prompt: list[int], held: list[int]
) -> None:
    """Without a token to feed there would be no logits to choose the first one from."""
    found = num_usable(as_tokens(prompt), as_tokens(held))
    assert found == naive_usable(prompt, held)
    assert found < len(prompt)


class Slots(RuleBasedStateMachine):
    """``rows`` is the model: the tokens that each slot's rows were written for, whoever holds it;
    a shift copies them, a new text overwrites them from where it begins."""

    leases = Bundle("leases")

    @initialize(num_slots=st.integers(1, 4))
    def open(self, num_slots: int) -> None:
        self.pool = SlotPool(num_slots)
        self.rows: list[list[int]] = [[] for _ in range(num_slots)]
        self.salts: list[str | None] = [None] * num_slots
        self.live: dict[SlotRef, tuple[list[int], str | None]] = {}
        self.unsound: set[SlotRef] = set()

    def shift(self, shift: Shift) -> None:
        held = {ref.index for ref in self.live}
        assert not held & {shift.source, shift.destination}, "a text's rows were shifted"
        a, b = shift.source, shift.destination
        if shift.swaps:
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        else:
            assert shift.num_positions <= len(self.rows[a])
            self.rows[b] = self.rows[a][: shift.num_positions]

    def kept(self) -> list[tuple[list[int], str | None]]:
        kept = [self.pool.kept(index) for index in range(len(self.rows))]
        return [(each.tokens.tolist(), each.salt) for each in kept if each is not None]

    @rule(target=leases, text=TEXTS.filter(len), salt=st.sampled_from([None, None, "a"]))
    def seat(self, text: list[int], salt: str | None) -> SlotRef | None:
        free = [i for i in range(len(self.rows)) if i not in {ref.index for ref in self.live}]
        if not free:
            with pytest.raises(CapacityError, match="slots are in use"):
                self.pool.seat(as_tokens(text), salt)
            return None
        before = self.kept()
        seat = self.pool.seat(as_tokens(text), salt)
        assert seat.slot.index == min(free)  # leased slots stay contiguous
        for shift in seat.shifts:
            self.shift(shift)
        best = max((naive_usable(text, held) for held, of in before if of == salt), default=0)
        assert seat.num_kept == best
        assert self.rows[seat.slot.index][:best] == text[:best]
        after = self.kept()
        lost = [each for each in before if each not in after]
        assert len(lost) <= 1, "more than the slot that was needed was lost"
        if len(before) < len(free):
            continued = [each for each in lost if 2 * best >= len(each[0])]
            assert lost == continued, "something was lost though a slot was empty"
        self.rows[seat.slot.index] = text
        self.live[seat.slot] = text, salt
        return seat.slot

    @rule(ref=leases, answer=TOKENS)
    def release(self, ref: SlotRef | None, answer: list[int]) -> None:
        if ref is None or ref not in self.live:
            return
        text, salt = self.live.pop(ref)
        self.rows[ref.index] = [*text, *answer]
        self.pool.release(ref, Kept(as_tokens(self.rows[ref.index]), salt))
        is_kept = self.pool.kept(ref.index) is not None
        assert is_kept == (ref not in self.unsound)

    @rule()
    def move(self) -> None:
        """Compaction, from the last leased slot."""
        free = [i for i in range(len(self.rows)) if i not in {ref.index for ref in self.live}]
        last = max(self.live, key=lambda ref: ref.index, default=None)
        if not free or last is None or last.index < min(free):
            return
        before = self.kept()
        new = self.pool.move(last)
        assert new.index == min(free)
        a, b = last.index, new.index
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        self.live[new] = self.live.pop(last)
        if last in self.unsound:
            self.unsound.add(new)
        assert self.pool.is_sound(new) == (last not in self.unsound)
        assert sorted(self.kept(), key=str) == sorted(before, key=str)
        with pytest.raises(CapacityError, match="is over"):
            self.pool.check(last)

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.unsound |= set(self.live)
        assert not self.pool.keeps

    @rule()
    def release_all(self) -> None:
        self.pool.release_all()
        self.live.clear()
        assert not self.pool.keeps

    @invariant()
    def what_is_kept_is_what_the_rows_hold(self) -> None:
        if not hasattr(self, "pool"):
            return
        held = {ref.index for ref in self.live}
        assert self.pool.num_free == len(self.rows) - len(held)
        for index, rows in enumerate(self.rows):
            kept = self.pool.kept(index)
            if kept is not None:
                assert index not in held
                assert rows[: len(kept.tokens)] == kept.tokens.tolist()


TestSlots = Slots.TestCase


def pool_of(*texts: list[int]) -> SlotPool:
    """A pool whose slots were left, in this order, by texts."""
    pool = SlotPool(len(texts))
    for ref, text in [(pool.lease(), text) for text in texts]:
        pool.release(ref, Kept(as_tokens(text), num_held=len(text) // 2))
    return pool


def test_a_conversation_that_goes_on_takes_its_own_rows_and_the_others_keep_theirs() -> None:
    first, second = [1] * 40, [2] * 40
    pool = pool_of(first, second)
    seat = pool.seat(as_tokens([*second, 3, 3]))
    assert (seat.num_kept, seat.num_held) == (32, 20)
    assert seat.shifts == (Shift(1, 0, 0, swaps=True),)
    kept = pool.kept(1)
    assert kept is not None
    assert kept.tokens.tolist() == first


def test_a_common_beginning_is_copied_and_the_conversation_behind_it_stays() -> None:
    """A system prompt that all requests share must not cost one of them its conversation."""
    system = [9] * 16
    first, second = [*system, *[1] * 100], [2] * 40
    pool = pool_of(second, first)
    seat = pool.seat(as_tokens([*system, 4, 4]))
    assert seat.num_kept == 16
    assert seat.shifts == (Shift(1, 0, 16),)
    kept = pool.kept(1)
    assert kept is not None
    assert kept.tokens.tolist() == first


def test_what_was_unused_the_longest_is_lost_first() -> None:
    old, new = [1] * 20, [2] * 20
    pool = pool_of(new, old)
    pool.seat(as_tokens([*new, 3]))  # used again: the other one is the older one now
    pool.release(SlotRef(0, 2), Kept(as_tokens([*new, 3])))
    seat = pool.seat(as_tokens([5] * 20))
    assert seat.num_kept == 0
    assert seat.shifts == (Shift(0, 1, 21),)
    assert not any(np.array_equal(each.tokens, old) for i in (0, 1) if (each := pool.kept(i)))


def test_what_made_way_for_a_text_that_moved_is_as_old_as_it_was() -> None:
    older, newer = [1] * 20, [2] * 20
    pool = SlotPool(3)
    low, middle, last = (pool.lease() for _ in range(3))
    pool.release(middle, Kept(as_tokens(older)))
    pool.release(low, Kept(as_tokens(newer)))
    pool.move(last)
    assert pool.seat(as_tokens([5] * 20)).shifts == ()
    kept = pool.kept(2)
    assert kept is not None
    assert kept.tokens.tolist() == newer


def test_of_two_that_begin_alike_the_one_with_less_beyond_is_gone_on_with() -> None:
    """The other one's text may come back, and costs more to read again."""
    system = [9] * 16
    long, short = [*system, *[1] * 100], [*system, *[2] * 4]
    pool = pool_of(long, short)
    assert pool.seat(as_tokens([*system, 4])).shifts == (Shift(1, 0, 0, swaps=True),)
    kept = pool.kept(1)
    assert kept is not None
    assert kept.tokens.tolist() == long


def test_rows_of_another_salt_are_not_used() -> None:
    """How fast an answer begins tells a tenant what another one has asked."""
    pool = pool_of([1] * 40)
    assert pool.seat(as_tokens([1] * 50), "b").num_kept == 0
