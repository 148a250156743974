"""The devices that the contract holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from runtime.device.api import Device, Stream
from runtime.device.cuda import CudaDevice
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.device.traced import TracedDevice
from runtime.device.virtual import VirtualDevice
from tests.helpers.fake_cuda import EAGER, LAZY, FakeCuda

IMPLEMENTATIONS: dict[str, Callable[[], Device]] = {
    "host": HostDevice,
    "host-checked": partial(HostDevice, check=True),
    "seeded-lazy": partial(SeededDevice, lazy),
    "seeded-eager": partial(SeededDevice, eager),
    "seeded-1": partial(SeededDevice, 1),
    "virtual": partial(VirtualDevice, check=True),
    "traced": lambda: TracedDevice(HostDevice(), lambda *_: None),
    "faulty": lambda: FaultyDevice(HostDevice(), [Fault("a", "what nobody launches")]),
    "seeded-2": lambda: SeededDevice(random.Random(2), check=False),
    "cuda-simulated-eager": lambda: CudaDevice(core=FakeCuda(EAGER), pinned=True),
    "cuda-simulated-lazy": lambda: CudaDevice(core=FakeCuda(LAZY), pinned=True, check=True),
    "cuda-simulated-1": lambda: CudaDevice(core=FakeCuda(random.Random(1)), pinned=True),
    "cuda": partial(CudaDevice, pinned=True),
}
NEEDS_GPU = {"cuda"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.gpu if name in NEEDS_GPU else ())
        for name in IMPLEMENTATIONS
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = IMPLEMENTATIONS[request.param]()
    yield opened
    opened.close()
    if isinstance(opened, CudaDevice) and isinstance(opened.core, FakeCuda):
        assert opened.core.misuses == []


@pytest.fixture
def streams(device: Device) -> tuple[Stream, Stream]:
    return device.create_stream("a"), device.create_stream("b")
