"""Shared libraries from C++ sources, by this machine's own compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from engines.errors import BackendError
from plugins.store import ROOT

COMPILER = "g++"
NO_COMPILER = (
    f"kernels for this processor are compiled by {COMPILER}, which is not on the path; install "
    "your system's C++ compiler"
)


def compiler() -> str | None:
    """Where g++ is, or None."""
    return shutil.which(COMPILER)


@cache
def compiler_version() -> str:
    """What g++ says of itself; raises BackendError without it."""
    return run([required_compiler(), "--version"]).stdout


def compile_library(source: Path, flags: Sequence[str]) -> bytes:
    """The bytes of the shared library that g++ makes of ``source``.

    Its includes in quotes name files from the root of the packages. Raises BackendError without
    g++, and with the compiler's first complaint where it refuses the source.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "library.so")
        options = (*flags, f"-I{ROOT}", "-x", "c++", str(source), "-o", str(output))
        done = run([required_compiler(), *options])
        if done.returncode:
            raise BackendError(f"{COMPILER} refuses {source.name}: {_first_error(done.stderr)}")
        return output.read_bytes()


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A finished command with its output as text; its exit status is the caller's to judge.

    Raises BackendError where it cannot be run.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        raise BackendError(f"{command[0]} cannot be run: {error.strerror}") from None


def required_compiler() -> str:
    """Where g++ is; raises BackendError without it."""
    found = compiler()
    if found is None:
        raise BackendError(NO_COMPILER)
    return found


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line]
    return lines[0] if lines else text.strip()
