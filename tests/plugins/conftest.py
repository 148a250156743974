"""Kernels in their host form, compiled afresh once a session: a cached build hides no failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plugins.cuda import host
from plugins.cuda.args import Args


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this session's compiled kernels."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def load_host(kernel_cache: Path) -> Callable[..., host.HostKernel]:
    """`plugins.cuda.host.load(source, args)`, in this session's cache."""

    def load(source: Path, args: Args) -> host.HostKernel:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSD_TRT_CACHE", str(kernel_cache))
            return host.load(source, args)

    return load


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
