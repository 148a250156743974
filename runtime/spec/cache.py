"""The speculation cache: per slot, outcome -> tokens drafted for it. It lives for one round."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.kv.slots import SlotRef
from runtime.spec.outcome import Outcome, Prepared


class SpeculationCache:
    """Entries carry the slot's lease and the round they were made in; a lookup must name both.

    So a branch drafted for another sequence, or for an older text, can never be returned.
    """

    def __init__(self) -> None:
        self._entries: dict[SlotRef, tuple[int, Mapping[Outcome, Prepared]]] = {}

    def store(self, slot: SlotRef, round_number: int, prepared: Mapping[Outcome, Prepared]) -> None:
        """Replace whatever the slot had."""
        self._entries[slot] = (round_number, prepared)

    def take(self, slot: SlotRef, round_number: int, outcome: Outcome) -> Prepared | None:
        """The tokens prepared for ``outcome`` of that round, if any; the slot's entry is spent."""
        made_in, prepared = self._entries.pop(slot, (None, {}))
        return prepared.get(outcome) if made_in == round_number else None
