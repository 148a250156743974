"""A checkpoint for commands to build from, and builds without the real graph."""

from __future__ import annotations

from pathlib import Path

import pytest

import export.build.build
from tests.export.build.fake_graph import fake_graph
from tests.helpers.checkpoints import make_llama


@pytest.fixture
def no_real_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds write what a stand-in for the graph writes."""
    monkeypatch.setattr(export.build.build, "_build_graph", lambda: fake_graph)


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A tiny checkpoint."""
    return str(make_llama(tmp_path / "target", hidden=64))
