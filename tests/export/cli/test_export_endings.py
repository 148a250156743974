"""Streams that are closed, or that nobody reads, watched from outside the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.tiny_bundles import write_bundle

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_the_shell_closed_are_no_traceback(tmp_path: Path, redirection: str) -> None:
    folder = write_bundle(tmp_path / "b")
    command = f"{sys.executable} -m export inspect {folder} {redirection}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_working_folder_that_was_removed_is_named(tmp_path: Path, target: str) -> None:
    """It was "No such file or directory", of nothing."""
    (tmp_path / "gone").mkdir()
    command = (
        f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && "
        f"exec {sys.executable} -m export build --target {target} --dry-run --max-len 64 --out b"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the working folder cannot be used (No such file")
    assert done.stderr.count("\n") == 1


def test_progress_that_nobody_reads_does_not_stop_the_work() -> None:
    """``2>&1 | head -1``: a build of minutes ended with "Broken pipe"."""
    script = (
        "from export.progress import lines; report = lines();"
        "[report(f'stage {i}', 0.5, '') for i in range(3)]; print('done')"
    )
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=closed,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "done\n")
