"""A file of prompts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    return ["--prompts", str(file)]
