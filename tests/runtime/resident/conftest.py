"""Kernels in their host form."""

from __future__ import annotations

import pytest

from runtime.device.copies import HostCopies
from runtime.resident.kernels import HostLaunches, Work


@pytest.fixture(scope="session")
def work() -> Work:
    """What work of a host device enqueues with; it holds no state of a device."""
    return Work(HostLaunches(), HostCopies())
