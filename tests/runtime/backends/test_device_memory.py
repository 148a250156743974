"""Caches and call memory of device sessions: the same rows as on the host, wherever they lie."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError
from engines.manifest import EngineManifest
from engines.profiles import length_buckets
from runtime.backends.api import CallShape
from runtime.backends.caches import RowBuckets
from runtime.backends.device_blocks import DeviceBlocks
from runtime.backends.device_caches import DeviceCaches
from runtime.device.copies import HostCopies
from runtime.device.host import HostDevice
from tests.helpers.tiny_bundle import tiny_bundle

NUM_SLOTS = 2


@cache
def wide_manifest() -> EngineManifest:
    """Of a target with 320 rows, so that there are buckets to grow through."""
    target = tiny_bundle().target
    kv = dataclasses.replace(target.kv, trunk_rows=320)
    return dataclasses.replace(target, kv=kv, lengths=length_buckets(kv.rows), plan=None)


@pytest.fixture
def manifest() -> EngineManifest:
    return wide_manifest()


def part(caches: DeviceCaches, index: int) -> np.ndarray:
    tensor = caches.tensors()[index]
    size = int(np.prod(tensor.shape))
    flat = caches.buffer.array[index].reshape(-1).view(np.float32)
    return flat[:size].reshape(tensor.shape)


Move = tuple[str, int, int]
MOVES = st.one_of(
    st.tuples(st.just("bind"), st.integers(1, 320), st.just(0)),
    st.tuples(st.just("slot"), st.integers(0, 1), st.integers(1, 60)),
    st.tuples(st.just("rows"), st.integers(0, 20), st.integers(30, 50)),
)


@given(moves=st.lists(MOVES, max_size=6), seed=st.integers(0, 99))
def test_rows_survive_growth_and_copies_as_on_the_host(moves: list[Move], seed: int) -> None:
    """A wrong pitch would mix heads; the host's caches are tested on their own."""
    engine = wide_manifest()
    host = RowBuckets(HostDevice(), engine, NUM_SLOTS)
    device = DeviceCaches(HostDevice(), engine, NUM_SLOTS, is_static=False)
    draw = np.random.default_rng(seed)
    for index in range(device.num_parts):
        values = draw.random(host.view(index).shape, np.float32)
        host.view(index)[:] = part(device, index)[:] = values
    for kind, first, second in moves:
        written = host.rows
        if kind == "bind":
            assert device.bind(first) == host.bind(first)
        elif kind == "slot":
            host.copy_slot(first, 1 - first, slice(2, second))
            device.copy_slot(first, 1 - first, slice(2, second))
        else:
            host.copy_rows(1, slice(first, first + 8, 2), second)
            device.copy_rows(1, slice(first, first + 8, 2), second)
        assert device.rows == host.rows
        for index in range(device.num_parts):
            assert np.array_equal(
                part(device, index)[:, :, :written], host.view(index)[:, :, :written]
            )
            # New rows are only promised to be finite; from here on both hold the same.
            part(device, index)[:, :, written:] = host.view(index)[:, :, written:]


def test_static_caches_have_all_rows_and_never_move(manifest: EngineManifest) -> None:
    caches = DeviceCaches(HostDevice(), manifest, NUM_SLOTS, is_static=True)
    assert caches.rows == 320
    assert not caches.bind(320)
    with pytest.raises(CapacityError, match="--max-len"):
        caches.bind(321)
    assert not caches.reset()


def test_growing_beyond_the_built_rows_is_refused(manifest: EngineManifest) -> None:
    caches = DeviceCaches(HostDevice(), manifest, NUM_SLOTS, is_static=False)
    with pytest.raises(CapacityError, match="--max-len"):
        caches.bind(321)
    assert caches.bind(65)
    assert caches.reset()
    assert caches.rows == 64


def test_every_call_of_the_runtime_has_memory_and_none_overlaps() -> None:
    """All shapes that a draft is called with, up to the largest: none may run out of the pool.

    Calls of one width share theirs, whatever the number of texts."""
    draft = tiny_bundle().draft
    assert draft is not None
    limits = draft.limits
    blocks = DeviceBlocks(HostDevice(), draft, NUM_SLOTS, limits.num_draft + 1)
    shapes = [
        CallShape(first, batch, width, rows)
        for batch in range(1, NUM_SLOTS + 1)
        for first in (0, NUM_SLOTS - batch)
        for width in range(1, limits.num_draft + 2)
        for rows in {1, width}
        if first == 0 or batch == 1
    ]
    shapes += [
        CallShape(slot, 1, width, rows)
        for slot in range(NUM_SLOTS)
        for width in (16, 32, 48, 64)
        for rows in (1, width)
    ]
    shapes += [
        CallShape(0, batch, width, width, copy=copy)
        for batch in range(1, NUM_SLOTS + 1)
        for width in range(1, limits.max_branches + 1)
        for copy in range(1, limits.num_draft + 1)
    ]
    spans: dict[tuple[object, ...], tuple[int, int]] = {}
    for shape in dict.fromkeys(shapes):
        tensors = blocks.tensors(shape, draft.kv.rows)
        for name in ("tokens", "positions", "write_at", "logit_rows", "num_draft"):
            size = int(np.prod(tensors[name].shape)) * 8
            key = (name, shape.num_tokens, shape.num_logits, shape.copy)
            start, end = spans.get(key, (tensors[name].address, 0))
            assert tensors[name].address == start
            spans[key] = (start, max(end, start + size))
        assert tensors["mask"].shape == (shape.num_slots, 1, shape.num_tokens, draft.kv.rows)
    for (_, end), (start, _) in pairwise(sorted(spans.values())):
        assert end <= start


def test_a_call_of_more_texts_than_its_width_has_room_for_is_refused() -> None:
    target = tiny_bundle().target
    blocks = DeviceBlocks(HostDevice(), target, NUM_SLOTS, 1)
    with pytest.raises(CapacityError, match="2 x 16 tokens with 1 logits does not fit"):
        blocks.tensors(CallShape(0, 2, 16, 1), 64)
    with pytest.raises(CapacityError, match="copy 1, the session was loaded with 1"):
        blocks.tensors(CallShape(0, 1, 1, 1, copy=1), 64)


def test_host_copies_move_pieces_by_their_pitches() -> None:
    source, target = np.arange(40, dtype=np.uint8), np.zeros(40, np.uint8)
    HostCopies().copy_2d(
        source.ctypes.data + 1,
        target.ctypes.data + 2,
        width=3,
        height=3,
        source_pitch=10,
        target_pitch=7,
    )
    expected = np.zeros(40, np.uint8)
    for row in range(3):
        expected[2 + 7 * row : 5 + 7 * row] = source[1 + 10 * row : 4 + 10 * row]
    assert np.array_equal(target, expected)
