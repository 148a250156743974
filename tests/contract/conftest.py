"""The devices that the contract holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from runtime.device.api import Device, Stream
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.device.traced import TracedDevice

IMPLEMENTATIONS: dict[str, Callable[[], Device]] = {
    "host": HostDevice,
    "host-checked": partial(HostDevice, check=True),
    "seeded-lazy": partial(SeededDevice, lazy),
    "seeded-eager": partial(SeededDevice, eager),
    "seeded-1": partial(SeededDevice, 1),
    "traced": lambda: TracedDevice(HostDevice(), lambda *_: None),
    "seeded-2": lambda: SeededDevice(random.Random(2), check=False),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = IMPLEMENTATIONS[request.param]()
    yield opened
    opened.close()


@pytest.fixture
def streams(device: Device) -> tuple[Stream, Stream]:
    return device.create_stream("a"), device.create_stream("b")
