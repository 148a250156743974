"""Prepared tokens reach only the lease, the round and the outcome they were prepared for."""

from __future__ import annotations

import pytest

from runtime.kv.slots import SlotRef
from runtime.spec.cache import SpeculationCache
from runtime.spec.outcome import Outcome, Prepared

SLOT, ROUND = SlotRef(0, 7), 3
OUTCOME, PREPARED = Outcome(2, 11), Prepared(branch=1, tokens=(4, 5))


@pytest.fixture
def cache() -> SpeculationCache:
    filled = SpeculationCache()
    filled.store(SLOT, ROUND, {OUTCOME: PREPARED, Outcome(0, 9): Prepared(0, (6, 7))})
    return filled


def test_the_prepared_outcome_is_a_hit(cache: SpeculationCache) -> None:
    assert cache.take(SLOT, ROUND, OUTCOME) == PREPARED


@pytest.mark.parametrize("outcome", [Outcome(2, 12), Outcome(1, 11), Outcome(0, 11)])
def test_another_outcome_is_a_miss(cache: SpeculationCache, outcome: Outcome) -> None:
    assert cache.take(SLOT, ROUND, outcome) is None


@pytest.mark.parametrize("slot", [SlotRef(0, 8), SlotRef(0, 6), SlotRef(1, 7)])
def test_another_lease_is_a_miss(cache: SpeculationCache, slot: SlotRef) -> None:
    """The next sequence in a slot must not be given what was drafted for the last one."""
    assert cache.take(slot, ROUND, OUTCOME) is None
    assert cache.take(SLOT, ROUND, OUTCOME) == PREPARED


@pytest.mark.parametrize("number", [ROUND - 1, ROUND + 1])
def test_another_round_is_a_miss_and_spends_the_entry(cache: SpeculationCache, number: int) -> None:
    """The same outcome may come again in a later round, after another text."""
    assert cache.take(SLOT, number, OUTCOME) is None
    assert cache.take(SLOT, ROUND, OUTCOME) is None


def test_an_entry_is_given_once(cache: SpeculationCache) -> None:
    cache.take(SLOT, ROUND, OUTCOME)
    assert cache.take(SLOT, ROUND, OUTCOME) is None


def test_a_new_round_replaces_the_old_one_whole(cache: SpeculationCache) -> None:
    cache.store(SLOT, ROUND + 1, {Outcome(0, 1): PREPARED})
    assert cache.take(SLOT, ROUND + 1, OUTCOME) is None


def test_slots_do_not_disturb_each_other(cache: SpeculationCache) -> None:
    cache.store(SlotRef(1, 7), ROUND, {})
    assert cache.take(SlotRef(1, 7), ROUND, OUTCOME) is None
    assert cache.take(SLOT, ROUND, OUTCOME) == PREPARED
