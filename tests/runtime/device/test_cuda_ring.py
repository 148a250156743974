"""The ring that brings integers back: its indices alone, and on a simulated GPU."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import DeviceError
from runtime.device.cuda import CudaBuffer, CudaDevice, CudaStream, PinnedRing, current_stream
from runtime.device.cuda_ring import RingIndex
from tests.helpers.fake_cuda import EAGER, FakeCuda

NUM_SLOTS = 3


@given(num_slots=st.integers(1, 5), claims=st.lists(st.booleans(), max_size=60))
def test_indices_are_those_of_a_bounded_queue(num_slots: int, claims: list[bool]) -> None:
    """A slot that waits to be read is never written; slots are read in the order written."""
    index, queue = RingIndex(num_slots), deque[int]()
    for is_claim in claims:
        if is_claim and len(queue) < num_slots:
            slot = index.claim()
            assert 0 <= slot < num_slots
            assert slot not in queue
            queue.append(slot)
        elif is_claim:
            with pytest.raises(DeviceError, match=f"all {num_slots} slots"):
                index.claim()
        elif queue:
            assert index.oldest == queue[0]
            assert index.release() == queue.popleft()
        else:
            for read in (index.release, lambda: index.oldest):
                with pytest.raises(DeviceError, match="nothing waits in the ring"):
                    read()
        assert index.num_waiting == len(queue)


def test_a_ring_needs_a_slot() -> None:
    with pytest.raises(DeviceError, match="at least one"):
        RingIndex(0)


class Pushing:
    """A stream whose GPU writes a number into `source`, over and over, and pushes it."""

    def __init__(self, cuda: FakeCuda, *, check: bool = False) -> None:
        self.cuda = cuda
        self.device = CudaDevice(core=cuda, check=check)
        self.stream: CudaStream = self.device.create_stream("a")
        self.source: CudaBuffer = self.device.allocate("source", (2,), np.int32)
        self.ring = PinnedRing(self.stream, "ring", (2,), np.int32, num_slots=NUM_SLOTS)

    def push(self, value: int) -> None:
        raw = self.source.memory.raw
        numbers = raw.bytes.view(np.int32)  # type: ignore[attr-defined]
        run: Callable[[], None] = partial(numbers.fill, value)
        self.stream.launch(
            lambda: self.cuda.kernel(current_stream(), run, raw), writes=[self.source]
        )
        self.ring.push(self.source)


@pytest.fixture
def pushing() -> Iterator[Pushing]:
    made = Pushing(FakeCuda(EAGER))
    yield made
    made.device.close()
    assert made.cuda.misuses == []


@given(pops=st.lists(st.booleans(), max_size=30), seed=st.integers(0, 2**16))
def test_rows_arrive_in_order_and_whole(pops: list[bool], seed: int) -> None:
    """On any schedule of the GPU, and with the order checker on."""
    made = Pushing(FakeCuda(random.Random(seed)), check=True)
    pushed, popped = 0, list[int]()
    for is_pop in pops:
        if is_pop or made.ring.num_waiting == NUM_SLOTS:
            row = made.ring.poll()
            if row is None and made.ring.num_waiting == NUM_SLOTS:
                row = made.ring.pop()
            popped += [] if row is None else list(map(int, row))
        else:
            pushed += 1
            made.push(pushed)
    while made.ring.num_waiting:
        popped += list(map(int, made.ring.pop()))
    made.device.close()
    assert popped == [number for number in range(1, pushed + 1) for _ in range(2)]
    assert made.cuda.misuses == []


def test_poll_never_waits_for_the_gpu(pushing: Pushing) -> None:
    assert pushing.ring.poll() is None
    handle = pushing.stream.handle
    pushing.cuda.hold(handle)
    pushing.push(5)
    pushing.stream.call(lambda: None)
    assert pushing.ring.poll() is None
    pushing.cuda.release(handle)
    row = pushing.ring.poll()
    assert row is not None
    assert row.tolist() == [5, 5]


def test_a_popped_row_is_not_overwritten(pushing: Pushing) -> None:
    pushing.push(1)
    row = pushing.ring.pop()
    for value in range(2, 2 + NUM_SLOTS):
        pushing.push(value)
    pushing.stream.sync()
    assert row.tolist() == [1, 1]


def test_a_full_ring_refuses_before_it_launches(pushing: Pushing) -> None:
    for value in range(NUM_SLOTS):
        pushing.push(value)
    with pytest.raises(DeviceError, match="all 3 slots of the ring"):
        pushing.ring.push(pushing.source)
    assert [int(pushing.ring.pop()[0]) for _ in range(NUM_SLOTS)] == [0, 1, 2]


def test_what_does_not_fit_or_would_be_replayed_is_refused(pushing: Pushing) -> None:
    """A replay would write the slot of the capture, over and over."""
    other = pushing.device.allocate("other", (3,), np.int32)
    with pytest.raises(DeviceError, match="'other' has 12 bytes"):
        pushing.ring.push(other)
    pushing.stream.begin_capture()
    with pytest.raises(DeviceError, match="push is not allowed while stream 'a' captures"):
        pushing.ring.push(pushing.source)
    pushing.stream.end_capture()
    assert pushing.ring.num_waiting == 0


def test_a_failed_stream_surfaces_instead_of_a_row(pushing: Pushing) -> None:
    """An event of a failed stream counts as done: what lies in the slot is not a row."""
    pushing.cuda.fail("kernel", "CUDA_ERROR_INVALID_VALUE: no")
    pushing.push(1)
    for read in (pushing.ring.pop, pushing.ring.pop):
        with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
            read()
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        pushing.ring.poll()
