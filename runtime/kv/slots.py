"""Slots: leased to one sequence at a time, told apart by a generation number."""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import CapacityError


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A lease. It is stale once the slot is released; using it then raises."""

    index: int
    generation: int


class SlotPool:
    """Hands out slots 0 .. num_slots - 1, lowest first, so that leased slots stay contiguous."""

    def __init__(self, num_slots: int) -> None:
        self._generations = [0] * num_slots
        self._free = list(range(num_slots))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def lease(self) -> SlotRef:
        """Take the lowest free slot. Raises CapacityError when all are leased."""
        if not self._free:
            raise CapacityError(
                f"all {len(self._generations)} slots are in use; rebuild with a larger --max-batch"
            )
        index = self._free.pop(0)
        self._generations[index] += 1
        return SlotRef(index, self._generations[index])

    def check(self, ref: SlotRef) -> int:
        """The slot's index; raises CapacityError when the lease is stale."""
        if self._generations[ref.index] != ref.generation or ref.index in self._free:
            raise CapacityError(
                f"lease {ref.generation} of slot {ref.index} is over, the slot is at lease "
                f"{self._generations[ref.index]}"
            )
        return ref.index

    def release(self, ref: SlotRef) -> None:
        """Give the slot back. Raises CapacityError when the lease is stale."""
        self._free.append(self.check(ref))
        self._free.sort()

    def release_all(self) -> None:
        """Take every slot back; all leases are stale."""
        self._free = list(range(len(self._generations)))
