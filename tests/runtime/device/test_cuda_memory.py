"""Memory of a GPU: where it lies, when it is freed, and how it gets to another GPU."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.cuda import CudaBuffer, CudaDevice, CudaLink, CudaStream, Enqueue
from runtime.device.cuda_memory import copy
from tests.helpers.cuda_work import unmisused
from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    yield from unmisused(FakeCuda(random.Random(7), num_gpus=2, with_calls=True))


def contents(device: CudaDevice, stream: CudaStream, buffer: CudaBuffer) -> list[int]:
    """A buffer's integers, by way of page-locked memory."""
    seen = device.allocate_pinned("seen", buffer.shape, buffer.dtype)
    stream.launch(partial(copy, buffer, seen))
    stream.sync()
    return list(map(int, seen.array.ravel()))


def write(device: CudaDevice, stream: CudaStream, buffer: CudaBuffer, value: int) -> None:
    given = device.allocate_pinned("given", buffer.shape, buffer.dtype)
    given.array[:] = value
    stream.launch(partial(copy, given, buffer))
    stream.sync()


def test_device_memory_is_zeroed_aligned_and_out_of_the_hosts_sight(device: CudaDevice) -> None:
    """The simulated memory is full of 0xCD when it is fresh."""
    x = device.allocate("x", (3, 5), np.int32)
    assert (x.name, x.shape, x.dtype, x.nbytes) == ("x", (3, 5), np.dtype("i4"), 60)
    assert x.address % 64 == 0
    assert contents(device, device.create_stream("a"), x) == [0] * 15
    with pytest.raises(DeviceError, match=r"'x' lies in the memory of cuda:0.*allocate_pinned"):
        _ = x.array


def test_only_the_pinned_lies_outside_the_pool(device: CudaDevice) -> None:
    a = device.create_stream("a")
    x = device.allocate_pinned("x", (4,), np.int16)
    x.array[:] = 7
    assert contents(device, a, x) == [7] * 4
    pinned = CudaDevice(core=FakeCuda(), pinned=True)
    assert pinned.allocate("y", (2,), np.int8).array.tolist() == [0, 0]
    pinned.close()


def test_too_little_memory_is_refused_with_figures_and_the_device_goes_on(
    device: CudaDevice,
) -> None:
    message = r"no memory for buffer 'kv': 2048 MiB of memory of cuda:0 \(CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(DeviceError, match=message):
        device.allocate("kv", (2**31,), np.int8)
    device.allocate("small", (16,), np.int8)


def test_a_dropped_buffer_is_freed_after_the_work_that_uses_it(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    """Work is dropped when its thread has run it; the GPU may not even have begun."""
    a = device.create_stream("a")
    handle = a.handle
    free = cuda.memory_free[0]
    x, y = device.allocate("x", (64,), np.int8), device.allocate_pinned("y", (64,), np.int8)
    cuda.hold(handle)
    a.launch(partial(copy, x, y))
    a.call(lambda: None)
    del x
    gc.collect()
    cuda.release(handle)
    a.sync()
    del y
    last = device.allocate("after the frees", (1,), np.int8)
    assert cuda.memory_free[0] == free - last.nbytes


def test_an_array_keeps_its_memory(cuda: FakeCuda, device: CudaDevice) -> None:
    """Freed page-locked memory under a numpy view is a crash."""
    free = cuda.memory_free[0]
    view = device.allocate_pinned("x", (8,), np.int8).array[2:4]
    gc.collect()
    last = device.allocate("last", (1,), np.int8)
    assert view.tolist() == [0, 0]
    assert cuda.memory_free[0] == free - 8 - last.nbytes
    del view
    gc.collect()
    again = device.allocate("again", (1,), np.int8)
    assert cuda.memory_free[0] == free - last.nbytes - again.nbytes


def test_buffers_outlive_their_device_and_are_freed_on_its_thread(cuda: FakeCuda) -> None:
    """No other thread has the GPU; the thread ends with the last buffer."""
    free = cuda.memory_free[0]
    device = CudaDevice(core=cuda)
    x, y = device.allocate("x", (8,), np.int8), device.allocate_pinned("y", (8,), np.int8)
    device.close()
    [thread] = [each for each in threading.enumerate() if each.name == "stream cuda:0 memory"]
    assert cuda.memory_free[0] == free - 16
    assert y.array.tolist() == [0] * 8
    del x, y
    gc.collect()
    thread.join(30.0)
    assert not thread.is_alive()
    assert cuda.memory_free[0] == free


def test_freeing_never_meets_a_capture(device: CudaDevice) -> None:
    """It synchronises the GPU, which would invalidate the capture of another thread."""
    a, x = device.create_stream("a"), device.allocate("x", (8,), np.int8)
    captures, freed = threading.Event(), threading.Event()

    def enqueue() -> None:
        captures.set()
        assert freed.wait(30.0)

    def drop() -> None:
        nonlocal x
        assert captures.wait(30.0)
        del x
        freed.set()

    other = threading.Thread(target=drop)
    other.start()
    a.begin_capture()
    a.launch(Enqueue(enqueue))
    a.end_capture()
    other.join()
    device.allocate("after the free", (1,), np.int8)


# --- two GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_link", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_link_carries_a_buffer_to_the_other_gpu(has_link: bool, seed: int) -> None:
    """Three times over, on any schedule of the two GPUs."""
    cuda = FakeCuda(random.Random(seed), num_gpus=2, has_link=has_link)
    target, draft = CudaDevice(0, core=cuda), CudaDevice(1, core=cuda)
    sender, receiver = target.create_stream("target"), draft.create_stream("draft")
    outcome = target.allocate("outcome", (2,), np.int32)
    arrived = draft.allocate("arrived", (2,), np.int32)
    link = CudaLink(outcome, target, arrived, draft)
    assert link.is_direct is has_link
    received = draft.create_event("received")
    for value in (3, 4, 5):
        write(target, sender, outcome, value)
        sender.wait(received)
        sender.launch(link.send)
        receiver.wait(sender.record())
        receiver.launch(link.receive)
        receiver.record(received)
        assert contents(draft, receiver, arrived) == [value] * 2
    draft.close()
    target.close()
    assert cuda.misuses == []


def test_a_direct_link_opens_the_targets_pool_to_the_source(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    """The GPU that copies is the source's; on the target's own thread, without the host's GPU."""
    other = CudaDevice(1, core=cuda)
    x, y = device.allocate("x", (2,), "i4"), other.allocate("y", (2,), "i4")
    CudaLink(x, device, y, other)
    [grant] = cuda.calls_of("peer_accessible_by.add")
    assert (grant.subject, grant.detail, grant.thread) == (0, 1, "stream cuda:1 memory")
    other.close()


def test_a_pinned_target_needs_no_link_between_gpus() -> None:
    cuda = FakeCuda(num_gpus=2, has_link=False)
    first, second = CudaDevice(0, core=cuda), CudaDevice(1, core=cuda)
    x, y = first.allocate("x", (2,), "i4"), second.allocate_pinned("y", (2,), "i4")
    assert CudaLink(x, first, y, second).is_direct
    assert not CudaLink(y, second, x, first).is_direct
    first.close()
    second.close()


def test_a_link_between_unequal_buffers_is_refused(device: CudaDevice) -> None:
    x, y = device.allocate("x", (2,), "i4"), device.allocate("y", (3,), "i4")
    with pytest.raises(DeviceError, match="'x' has 8 bytes and 'y' has 12"):
        CudaLink(x, device, y, device)
