"""Cache memory in row buckets: what survives growth, and what must not be left behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError
from engines.manifest import DRAFT, KvLayout, Limits
from engines.tensors import DType
from runtime.backends.caches import RowBuckets
from runtime.backends.toy import toy_manifest
from runtime.device.host import HostDevice

LAYERS, SLOTS, HEADS, WIDTH, LENGTHS = 2, 3, 2, 4, (5, 8, 13, 20)


def make_caches() -> RowBuckets:
    manifest = replace(
        toy_manifest(DRAFT, 4, 4, Limits(12, SLOTS, 2, 2)),
        kv=KvLayout(LAYERS, HEADS, WIDTH, DType.FLOAT32, 4, LENGTHS[-1] - 4),
        lengths=LENGTHS,
    )
    return RowBuckets(HostDevice(), manifest, SLOTS)


def parts(caches: RowBuckets) -> np.ndarray:
    """A copy of everything that is bound: [2 * layers, slots, heads, rows, width]."""
    return np.stack([caches.view(part) for part in range(2 * LAYERS)])


def fill(caches: RowBuckets) -> np.ndarray:
    """Write another number into each cell that is bound."""
    for part in range(2 * LAYERS):
        view = caches.view(part)
        view[:] = 1 + np.arange(view.size).reshape(view.shape) + 10_000 * part
    return parts(caches)


@given(st.lists(st.integers(0, LENGTHS[-1]), max_size=6))
def test_growing_keeps_every_row_and_adds_zeros(needs: list[int]) -> None:
    """The heads move apart inside one memory: in the wrong order they overwrite each other."""
    caches = make_caches()
    address = caches.buffer.address
    for needed in needs:
        before, rows = fill(caches), caches.rows
        caches.buffer.array[:, caches.view(0).size :] = np.nan  # what was never bound
        grown = caches.bind(needed)
        assert grown == (needed > rows)
        assert caches.rows == (min(n for n in LENGTHS if n >= needed) if grown else rows)
        after = parts(caches)
        np.testing.assert_array_equal(after[..., :rows, :], before)
        assert not after[..., rows:, :].any()
        assert caches.buffer.address == address


def test_views_are_the_memory_itself() -> None:
    """An engine writes through the address it was given."""
    caches = make_caches()
    caches.view(1)[2, 1, 4, 3] = 7
    assert np.count_nonzero(caches.buffer.array) == 1
    assert caches.view(1)[2, 1, 4, 3] == 7


def test_a_reset_returns_to_the_smallest_bucket() -> None:
    caches = make_caches()
    assert not caches.reset()
    caches.bind(LENGTHS[-1])
    assert caches.reset()
    assert caches.rows == LENGTHS[0]
    assert caches.view(0).shape == (SLOTS, HEADS, LENGTHS[0], WIDTH)


def test_copied_rows_reach_every_layer_and_head_of_their_slot_alone() -> None:
    caches = make_caches()
    caches.bind(13)
    before = fill(caches)
    caches.copy_rows(1, slice(1, 7, 3), 9)  # rows 1 and 4 to rows 9 and 10
    expected = before.copy()
    expected[:, 1, :, 9:11] = before[:, 1, :, [1, 4]].transpose(1, 2, 0, 3)
    np.testing.assert_array_equal(parts(caches), expected)


def test_a_slots_rows_copied_to_another_reach_every_layer_and_head_and_nothing_else() -> None:
    caches = make_caches()
    caches.bind(13)
    before = fill(caches)
    caches.copy_slot(2, 0, slice(4, 11))
    expected = before.copy()
    expected[:, 0, :, 4:11] = before[:, 2, :, 4:11]
    np.testing.assert_array_equal(parts(caches), expected)


def test_zeroing_reaches_what_is_not_bound() -> None:
    caches = make_caches()
    caches.buffer.array[:] = np.nan
    caches.zero()
    assert not caches.buffer.array.any()


def test_too_many_rows_are_refused_and_change_nothing() -> None:
    caches = make_caches()
    before = fill(caches)
    with pytest.raises(CapacityError, match=r"21 cache rows needed.*20.*--max-len"):
        caches.bind(21)
    np.testing.assert_array_equal(parts(caches), before)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.integers(0, LENGTHS[-1])),
        st.tuples(st.just("shrink"), st.integers(0, LENGTHS[-1])),
        st.tuples(st.just("copy"), st.permutations(range(SLOTS))),
        st.tuples(st.just("swap"), st.permutations(range(SLOTS))),
        st.tuples(st.just("write"), st.integers(0, SLOTS - 1)),
    ),
    max_size=12,
)


@given(STEPS, st.lists(st.integers(0, LENGTHS[-1]), min_size=SLOTS, max_size=SLOTS))
def test_kept_rows_survive_any_shrinking_growing_copying_and_swapping(steps, kept) -> None:
    """Rows that lie aside, behind fewer bound ones, are reached by copies and come back when rows
    are bound: against a model that never moves anything."""
    caches = make_caches()
    caches.bind(LENGTHS[-1])
    model = fill(caches)
    for number, (what, value) in enumerate(steps):
        if what == "bind":
            caches.bind(value)
        elif what == "shrink":
            before = caches.rows
            assert caches.shrink(value, kept) == (caches.rows < before)
            assert caches.rows >= min(value, before)
        elif what == "write":
            for part in range(2 * LAYERS):
                caches.view(part)[value] = 1e6 * (1 + number)
            model[:, value, :, : caches.rows] = 1e6 * (1 + number)
            kept = [*kept]
            kept[value] = max(kept[value], caches.rows)
        else:
            source, destination = value[:2]
            num = max(kept[source], kept[destination])
            rows = slice(0, num)
            if what == "copy":
                caches.copy_slot(source, destination, slice(0, kept[source]))
                model[:, destination, :, : kept[source]] = model[:, source, :, : kept[source]]
                kept[destination] = kept[source]
            else:
                caches.swap_slots(source, destination, rows)
                model[:, [source, destination], :, rows] = model[:, [destination, source], :, rows]
                kept[source], kept[destination] = kept[destination], kept[source]
    caches.bind(LENGTHS[-1])
    after = parts(caches)
    for slot, num in enumerate(kept):
        np.testing.assert_array_equal(after[:, slot, :, :num], model[:, slot, :, :num])
    assert np.isfinite(after).all()


def test_a_reset_forgets_what_was_laid_aside() -> None:
    """Else the next growth would bring rows back that nobody vouches for, at some cost."""
    caches = make_caches()
    caches.bind(LENGTHS[-1])
    fill(caches)
    caches.shrink(0, [LENGTHS[-1]] * SLOTS)
    caches.reset()
    caches.bind(LENGTHS[-1])
    assert not parts(caches)[..., LENGTHS[0] :, :].any()
