"""Simulated GPUs with a simulated TensorRT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.tensorrt_sessions import Bench


def opened(folder: Path, module: str) -> Iterator[Bench]:
    made = Bench(folder, module)
    yield made
    made.close()
    assert made.cuda.misuses == []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Standard TensorRT."""
    yield from opened(tmp_path, "tensorrt")


@pytest.fixture
def rtx(tmp_path: Path) -> Iterator[Bench]:
    yield from opened(tmp_path, "tensorrt_rtx")


@pytest.fixture
def both(tmp_path: Path, module: str) -> Iterator[Bench]:
    """The one that ``module`` names."""
    yield from opened(tmp_path, module)
