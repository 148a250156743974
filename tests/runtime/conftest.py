"""Toy pairs in each mode, and a memo of their own for pairs on simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.device.host import HostDevice
from runtime.resident.kernels import NAMES
from tests.helpers.simulated_gpu import host_kernel
from tests.helpers.toy_pair import ToyPair


@pytest.fixture(params=["ar", "sd", "ssd"])
def each_mode(request):
    return request.param


@pytest.fixture
def make_pair():
    """Pairs on devices of their own, closed at the end."""
    devices = []

    def pair(mode: str, **options) -> ToyPair:
        devices.append(HostDevice(check=True))
        return ToyPair(devices[-1], mode, **options)

    yield pair
    for device in devices:
        device.close()


@pytest.fixture
def own_memo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these GPUs were found to be is no news for the machine that tests run on."""
    for name in NAMES:  # into, or out of, the cache of all tests
        host_kernel(name)
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
