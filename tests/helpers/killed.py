"""A process of ours that kills itself in the middle of something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def kill_itself(script: str, *arguments: object) -> None:
    """Run a Python script that must end by SIGKILL of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
