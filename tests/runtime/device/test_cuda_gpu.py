"""The CUDA device on a real GPU: what its simulation assumes. Needs cuda.core and a driver.

The contract suite runs on it too (`tests/contract`, the device named "cuda").
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.cuda import (
    CudaBuffer,
    CudaDevice,
    CudaLink,
    CudaStreamOptions,
    Enqueue,
    current_stream,
    load_cuda,
)
from runtime.device.cuda_memory import copy

pytestmark = pytest.mark.gpu

LARGE = 2**28
"""Bytes whose filling takes the GPU far longer than the host takes to enqueue it."""


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    opened = CudaDevice()
    yield opened
    opened.close()


def fill(buffer: CudaBuffer, value: int) -> None:
    buffer.memory.raw.fill(value, stream=current_stream())


def test_device_memory_is_zeroed_also_when_it_is_used_again(device: CudaDevice) -> None:
    a, seen = device.create_stream("a"), device.allocate_pinned("seen", (LARGE,), np.uint8)
    for _ in range(3):
        x = device.allocate("x", (LARGE,), np.uint8)
        assert x.address % 64 == 0
        seen.array[:] = 1
        a.launch(partial(copy, x, seen))
        a.sync()
        assert not seen.array.any()
        a.launch(partial(fill, x, 0xFF))
        del x


def test_a_wait_orders_the_gpu_and_not_the_threads(device: CudaDevice) -> None:
    a, b = device.create_stream("a"), device.create_stream("b")
    x, seen = (
        device.allocate("x", (LARGE,), np.uint8),
        device.allocate_pinned("seen", (LARGE,), np.uint8),
    )
    for turn in range(1, 4):
        for value in range(20):
            a.launch(partial(fill, x, value))
        a.launch(partial(fill, x, 100 + turn))
        b.wait(a.record())
        b.launch(partial(copy, x, seen))
        b.sync()
        assert (seen.array == 100 + turn).all()
        a.wait(b.record())


def test_a_graph_reads_its_buffers_at_replay(device: CudaDevice) -> None:
    a = device.create_stream("a")
    given, x = (
        device.allocate_pinned("given", (64,), np.uint8),
        device.allocate("x", (64,), np.uint8),
    )
    seen = device.allocate_pinned("seen", (64,), np.uint8)
    a.begin_capture()
    a.launch(Enqueue(partial(copy, given, x)))
    a.launch(Enqueue(partial(copy, x, seen)))
    graph = a.end_capture()
    for value in range(5):
        given.array[:] = value
        graph.launch(a)
        a.sync()
        assert (seen.array == value).all()
    del graph


def test_work_that_syncs_is_refused_by_the_capture_and_the_stream_goes_on(
    device: CudaDevice,
) -> None:
    a, x = device.create_stream("a"), device.allocate("x", (64,), np.uint8)
    a.begin_capture()
    a.launch(Enqueue(partial(fill, x, 1)), label="fill")
    a.launch(Enqueue(lambda: current_stream().sync()), label="careless")
    with pytest.raises(DeviceError, match=r"capturing 'careless' failed.*may only enqueue"):
        a.end_capture()
    a.launch(partial(fill, x, 2))
    a.sync()


def test_a_dropped_buffer_stays_until_the_gpu_is_done(device: CudaDevice) -> None:
    a = device.create_stream("a")
    x, y = device.allocate("x", (LARGE,), np.uint8), device.allocate("y", (LARGE,), np.uint8)
    seen = device.allocate_pinned("seen", (LARGE,), np.uint8)
    for value in range(20):
        a.launch(partial(fill, x, value))
    a.launch(partial(copy, x, y))
    a.call(lambda: None)
    del x
    z = device.allocate("z", (LARGE,), np.uint8)
    a.launch(partial(copy, y, seen))
    a.sync()
    assert (seen.array == 19).all()
    del z


def test_too_much_memory_is_refused_and_the_device_goes_on(device: CudaDevice) -> None:
    with pytest.raises(DeviceError, match="no memory for buffer 'x'"):
        device.allocate("x", (2**46,), np.int8)
    device.allocate("x", (16,), np.int8)


def test_an_urgent_stream_is_more_urgent() -> None:
    device = CudaDevice(streams={"target": CudaStreamOptions(is_urgent=True)})

    def priority() -> int:
        stream: Any = current_stream()
        return int(stream.priority)

    target, draft = device.create_stream("target"), device.create_stream("draft")
    assert target.call(priority) < draft.call(priority) == 0
    device.close()


def test_shares_are_disjoint_or_refused_by_name() -> None:
    options = {
        "target": CudaStreamOptions(sm_share=0.75),
        "draft": CudaStreamOptions(sm_share=0.25),
    }
    device = CudaDevice(streams=options)

    def num_sms() -> int:
        stream: Any = current_stream()
        return int(stream.resources.sm.sm_count)

    core: Any = load_cuda()
    try:
        target, draft = device.create_stream("target"), device.create_stream("draft")
    except DeviceError as error:
        if "sm_share" not in str(error):
            raise
    else:
        assert 0 < draft.call(num_sms) < target.call(num_sms)
        total = target.call(lambda: core.Device(0).resources.sm.sm_count)
        assert target.call(num_sms) + draft.call(num_sms) <= total
        x = device.allocate("x", (2**20,), np.uint8)
        seen = device.allocate_pinned("seen", (2**20,), np.uint8)
        draft.launch(partial(fill, x, 9))
        target.wait(draft.record())
        target.launch(partial(copy, x, seen))
        target.sync()
        assert (seen.array == 9).all()
    finally:
        device.close()


def test_a_link_between_two_gpus() -> None:
    first = CudaDevice(0)
    try:
        second = CudaDevice(1)
    except DeviceError:
        first.close()
        pytest.skip("needs two GPUs")
    sender, receiver = first.create_stream("a"), second.create_stream("b")
    x, y = first.allocate("x", (64,), np.uint8), second.allocate("y", (64,), np.uint8)
    seen = second.allocate_pinned("seen", (64,), np.uint8)
    link, received = CudaLink(x, first, y, second), second.create_event()
    for value in range(10):
        sender.wait(received)
        sender.launch(partial(fill, x, value))
        sender.launch(link.send)
        receiver.wait(sender.record())
        receiver.launch(link.receive)
        receiver.record(received)
        receiver.launch(partial(copy, y, seen))
        receiver.sync()
        assert (seen.array == value).all()
    second.close()
    first.close()
