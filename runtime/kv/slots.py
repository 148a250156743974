"""Slots: leased to one sequence at a time, told apart by a generation number; and what the free
ones keep of the last.

The lowest free slot is leased, so that leased slots stay contiguous, and what it keeps makes way:

    the new text goes on with                     its rows        what else is kept
    --------------------------------------------  --------------  --------------------------------
    nothing                                       none            moves from the leased slot to the
                                                                  one that was unused the longest
    most of what a free slot keeps (multi-turn),  change places   all of it
    or with it in the only free slot
    its beginning (a common system prompt)        are copied      as with nothing; the source stays

So what is lost is what was unused the longest. Everything here is bookkeeping: ``Shift`` says what
the caches have to do, before the lease begins.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import CapacityError
from runtime.kv.kept import Kept, Shift, Tokens, num_usable


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A lease. It is stale once the slot is released; using it then raises."""

    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class Seat:
    """A lease whose slot holds the first ``num_kept`` positions already, ``num_held`` of them for
    the draft, too, once ``shifts`` are done in their order."""

    slot: SlotRef
    num_kept: int = 0
    num_held: int = 0
    shifts: tuple[Shift, ...] = ()


class SlotPool:
    """Hands out slots 0 .. num_slots - 1, lowest first, so that leased slots stay contiguous."""

    def __init__(self, num_slots: int) -> None:
        self._generations = [0] * num_slots
        self._free = list(range(num_slots))
        # Of free slots; and when each was used last.
        self._kept: list[Kept | None] = [None] * num_slots
        self._used = [0] * num_slots
        self._clock = 0
        self._unsound: set[SlotRef] = set()  # leases whose rows are not to be kept

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def keeps(self) -> bool:
        """Whether a free slot holds anything."""
        return any(kept is not None for kept in self._kept)

    def kept(self, index: int) -> Kept | None:
        """What a free slot holds."""
        return self._kept[index]

    def lease(self) -> SlotRef:
        """Take the lowest free slot; what it kept is lost. Raises CapacityError when all are
        leased."""
        if not self._free:
            raise CapacityError(
                f"all {len(self._generations)} slots are in use; rebuild with a larger --max-batch"
            )
        index = self._free.pop(0)
        self._generations[index] += 1
        self._kept[index] = None
        return SlotRef(index, self._generations[index])

    def seat(self, prompt: Tokens, salt: str | None = None) -> Seat:
        """Take the lowest free slot for a text that begins with ``prompt``, with the longest
        usable beginning that a free slot keeps; see the module's table.

        Raises CapacityError when all are leased.
        """
        if not self._free or not self.keeps:
            return Seat(self.lease())
        index = self._free[0]
        source, num = self._longest(prompt, salt)
        others = [each for each in self._free if each != source]
        if source is None:
            shifts = self._make_way(index, others)
            return Seat(self.lease(), shifts=shifts)
        kept = self._kept[source]
        assert kept is not None
        if 2 * num >= len(kept.tokens) or not others:
            shifts = self._change_places(source, index, num)
        else:
            self._touch(source)
            shifts = self._make_way(index, others)
            if source != index:
                shifts = (*shifts, Shift(source, index, num))
        return Seat(self.lease(), num, min(num, kept.num_held), shifts)

    def move(self, ref: SlotRef) -> SlotRef:
        """Let a leased text take the lowest free slot; what that one kept is in its old slot now.
        Raises CapacityError when the lease is stale."""
        old = self.check(ref)
        new = self._free[0]
        kept, used = self._kept[new], self._used[new]
        slot = self.lease()
        if ref in self._unsound:
            self._unsound.add(slot)
        self.release(ref)
        self._kept[old], self._used[old] = kept, used
        return slot

    def check(self, ref: SlotRef) -> int:
        """The slot's index; raises CapacityError when the lease is stale."""
        if self._generations[ref.index] != ref.generation or ref.index in self._free:
            raise CapacityError(
                f"lease {ref.generation} of slot {ref.index} is over, the slot is at lease "
                f"{self._generations[ref.index]}"
            )
        return ref.index

    def is_sound(self, ref: SlotRef) -> bool:
        """Whether the rows of a lease may be used by others."""
        return ref not in self._unsound

    def release(self, ref: SlotRef, kept: Kept | None = None) -> None:
        """Give the slot back, with what it holds. Raises CapacityError when the lease is stale."""
        index = self.check(ref)
        self._free.append(index)
        self._free.sort()
        if ref not in self._unsound and kept is not None and len(kept.tokens):
            self._kept[index] = kept
            self._touch(index)
        self._unsound.discard(ref)

    def forget(self) -> None:
        """Nothing that any slot holds by now is to be used again, the rows of leased ones
        included."""
        self._kept = [None] * len(self._kept)
        free = set(self._free)
        self._unsound = {
            SlotRef(index, generation)
            for index, generation in enumerate(self._generations)
            if index not in free
        }

    def release_all(self) -> None:
        """Take every slot back; all leases are stale, and nothing is kept."""
        self._free = list(range(len(self._generations)))
        self._kept = [None] * len(self._kept)
        self._unsound.clear()

    def _longest(self, prompt: Tokens, salt: str | None) -> tuple[int | None, int]:
        """The free slot with the longest usable beginning, and its positions; of several, the one
        that has the least beyond it."""
        found = [
            (num_usable(prompt, kept.tokens), -len(kept.tokens), index)
            for index in self._free
            if (kept := self._kept[index]) is not None and kept.salt == salt
        ]
        num, _, index = max(found, default=(0, 0, 0))
        return (index, num) if num else (None, 0)

    def _make_way(self, index: int, places: list[int]) -> tuple[Shift, ...]:
        """What ``index`` keeps goes to the one of ``places`` that was unused the longest; if that
        is itself, it is lost."""
        kept, target = self._kept[index], min(places, key=self._age)
        if kept is None or target == index:
            return ()
        self._kept[target], self._used[target] = kept, self._used[index]
        return (Shift(index, target, len(kept.tokens)),)

    def _change_places(self, source: int, index: int, num: int) -> tuple[Shift, ...]:
        """Let ``index`` hold what ``source`` keeps, and the other way round."""
        if source == index:
            return ()
        other = self._kept[index]
        self._kept[index], self._kept[source] = self._kept[source], other
        self._used[source] = self._used[index]
        if other is None:
            return (Shift(source, index, num),)
        return (Shift(source, index, 0, swaps=True),)

    def _age(self, index: int) -> tuple[bool, int, int]:
        """Sorts slots by what is lost if they are overwritten: nothing, then the oldest."""
        return self._kept[index] is not None, self._used[index], index

    def _touch(self, index: int) -> None:
        self._clock += 1
        self._used[index] = self._clock
