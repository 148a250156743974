"""Devices of a simulated CUDA. A file with GPUs of another kind has a ``cuda`` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.device.cuda import CudaDevice, CudaStream
from tests.helpers.cuda_work import unmisused
from tests.helpers.fake_cuda import EAGER, FakeCuda


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    """Two GPUs that do at once what they are asked to."""
    yield from unmisused(FakeCuda(EAGER, num_gpus=2, with_calls=True))


@pytest.fixture
def device(cuda: FakeCuda) -> Iterator[CudaDevice]:
    opened = CudaDevice(core=cuda)
    yield opened
    opened.close()


@pytest.fixture
def streams(device: CudaDevice) -> tuple[CudaStream, CudaStream]:
    return device.create_stream("a"), device.create_stream("b")
