"""Toy pairs in each mode."""

from __future__ import annotations

import pytest

from runtime.device.host import HostDevice
from tests.helpers.toy_pair import ToyPair


@pytest.fixture(params=["ar", "sd", "ssd"])
def mode(request):
    return request.param


@pytest.fixture
def make():
    """Pairs on devices of their own, closed at the end."""
    devices = []

    def pair(mode: str, **options) -> ToyPair:
        devices.append(HostDevice(check=True))
        return ToyPair(devices[-1], mode, **options)

    yield pair
    for device in devices:
        device.close()
