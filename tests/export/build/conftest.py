"""Builds whose engines are compiled; ``test_build`` and ``test_writer`` have options of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.build.options import BuildOptions
from tests.export.build.fake_compiling import Compiler, tiny_options, use


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of engines for one test."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    return tiny_options(tmp_path)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """One that is not there."""
    fake = Compiler()
    use(monkeypatch, fake)
    return fake
