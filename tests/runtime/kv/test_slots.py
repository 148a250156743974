"""Leases of slots: any sequence of leasing and releasing, stale leases included."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from engines.errors import CapacityError
from runtime.kv.slots import SlotPool, SlotRef


class SlotLeases(RuleBasedStateMachine):
    """``live`` is the model: the lease each slot is at, where it is leased."""

    leases = Bundle("leases")

    @initialize(num_slots=st.integers(1, 4))
    def open(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.pool = SlotPool(num_slots)
        self.live: dict[int, SlotRef] = {}
        self.given: set[SlotRef] = set()

    @rule(target=leases)
    def lease(self) -> SlotRef | None:
        free = set(range(self.num_slots)) - set(self.live)
        if not free:
            with pytest.raises(CapacityError, match=f"all {self.num_slots} slots.*--max-batch"):
                self.pool.lease()
            return None
        ref = self.pool.lease()
        assert ref.index == min(free)  # leased slots stay contiguous from 0 on
        assert ref not in self.given  # no two leases are ever equal
        self.given.add(ref)
        self.live[ref.index] = ref
        return ref

    @rule(ref=leases)
    def check(self, ref: SlotRef | None) -> None:
        if ref is None:
            return
        if self.live.get(ref.index) == ref:
            assert self.pool.check(ref) == ref.index
        else:
            with pytest.raises(CapacityError, match=f"lease {ref.generation} of slot {ref.index}"):
                self.pool.check(ref)

    @rule(ref=leases)
    def release(self, ref: SlotRef | None) -> None:
        """A stale release must not take the slot from its new holder."""
        if ref is None:
            return
        if self.live.get(ref.index) == ref:
            self.pool.release(ref)
            del self.live[ref.index]
        else:
            with pytest.raises(CapacityError, match="is over"):
                self.pool.release(ref)

    @rule()
    def release_all(self) -> None:
        self.pool.release_all()
        self.live.clear()

    @invariant()
    def all_slots_are_leased_or_free(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.num_free == self.num_slots - len(self.live)


TestSlotLeases = SlotLeases.TestCase
