from __future__ import annotations

from pathlib import Path

import pytest

from export.disk import sync


def test_what_is_not_there_cannot_be_on_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "none")
