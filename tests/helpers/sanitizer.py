"""Running Python with ThreadSanitizer loaded, for kernels that were compiled with it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from engines.errors import BackendError
from plugins.cuda import host

FOUND = "WARNING: ThreadSanitizer: data race"


@functools.cache
def prefix() -> tuple[str, ...] | None:
    """What a command starts with; None where g++ has no sanitizer, or it cannot run here."""
    try:
        runtime = host.sanitizer_runtime()
    except BackendError:
        return None
    if runtime is None:
        return None
    plain = ("env", f"LD_PRELOAD={runtime}")
    # Older sanitizers do not find their way around addresses as random as newer kernels make them.
    setarch = shutil.which("setarch")
    fixed = (setarch, "--addr-no-randomize", *plain) if setarch else plain
    return next((each for each in (plain, fixed) if _works(each)), None)


def _works(command: tuple[str, ...]) -> bool:
    done = subprocess.run(
        [*command, sys.executable, "-c", ""], capture_output=True, timeout=60, check=False
    )
    return done.returncode == 0


def run(script: Path, *args: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python script to its end; exit code 66 when a race was found."""
    command = prefix()
    assert command is not None, "the tsan marker skips where there is none"
    return subprocess.run(
        [*command, sys.executable, str(script), *args],
        env={
            **os.environ,
            "TSAN_OPTIONS": "exitcode=66",
            "SSD_TRT_CACHE": str(cache),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
