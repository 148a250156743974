"""A memo of their own for pairs on simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.resident.kernels import NAMES
from tests.helpers.simulated_gpu import host_kernel


@pytest.fixture
def own_memo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these GPUs were found to be is no news for the machine that tests run on."""
    for name in NAMES:  # into, or out of, the cache of all tests
        host_kernel(name)
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
