"""What a CUDA device tells of its GPU, and what it does for libraries that use the GPU too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.cuda import CudaDevice, current_stream
from tests.helpers.cuda_work import append, unmisused
from tests.helpers.fake_cuda import LAZY, FakeCuda


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    yield from unmisused(FakeCuda(LAZY, capability=(8, 9), with_calls=True))


def test_the_gpu_is_named_with_its_capability(cuda: FakeCuda) -> None:
    device = CudaDevice(core=cuda)
    assert (device.gpu_name, device.capability) == ("Simulated GPU", "8.9")
    device.close()
    with pytest.raises(DeviceError):
        _ = device.capability


def test_what_a_library_holds_is_closed_when_the_gpu_is_idle(cuda: FakeCuda) -> None:
    """Its memory is in use until all that was enqueued before has run."""
    device, log = CudaDevice(core=cuda), []
    stream = device.create_stream("a")
    append(stream, cuda, log, "work")
    stream.call(lambda: None)
    device.when_idle(lambda: log.append(f"closed on GPU {cuda.current}"))
    device.close()
    assert log == ["work", "closed on GPU 0"]


def test_memory_is_filled_by_address_on_the_stream(cuda: FakeCuda) -> None:
    device = CudaDevice(core=cuda)
    stream, buffer = device.create_stream("a"), device.allocate_pinned("b", (8,), np.uint8)
    handle = stream.handle
    stream.call(lambda: cuda.fill(buffer.address + 2, 7, 3, handle))
    assert not buffer.array.any()
    stream.sync()
    assert buffer.array.tolist() == [0, 0, 7, 7, 7, 0, 0, 0]
    device.close()


def test_a_stream_says_whether_it_is_captured(cuda: FakeCuda) -> None:
    device = CudaDevice(core=cuda)
    stream = device.create_stream("a")

    def captured() -> list[bool]:
        handle = stream.handle
        builder = current_stream().create_graph_builder()
        found = [cuda.is_capturing(handle)]
        builder.begin_building("thread_local")
        found.append(cuda.is_capturing(handle))
        builder.end_building()
        return [*found, cuda.is_capturing(handle)]

    assert stream.call(captured) == [False, True, False]
    device.close()
