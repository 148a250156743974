"""A run of the tests leaves nothing in the temporary folder: bundles add up to gigabytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKERS = {"tests/helpers/session_folder.py", "tests/test_leftovers.py"}


def test_what_is_built_once_a_session_goes_with_it(tmp_path: Path) -> None:
    code = """
from tests.helpers.session_folder import session_folder
folder = session_folder("bundle")
(folder / "deep").mkdir()
(folder / "deep" / "file").write_text("a plan")
print(folder)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_no_test_makes_a_temporary_folder_that_nobody_removes() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "mkdtemp" in path.read_text(encoding="utf-8")
    }
    assert found == MAKERS
