"""Shared libraries from C++ sources, by this machine's own compiler."""

from __future__ import annotations

import ctypes
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
MOST_S = 300
"""Seconds for a source: far more than any of ours takes."""
_LONGEST = 300
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


def compile_library(
    source: Path, flags: Sequence[str], *, entry: str | None = None, most_s: float = MOST_S
) -> bytes:
    """The bytes of the shared library that g++ makes of ``source``.

    Its includes in quotes name files from the root of the packages. ``entry``: try whether it can
    be loaded, and has a function of that name. ``most_s``: seconds that the compiler may take.

    Raises BackendError without g++, with the compiler's first complaint where it refuses the source
    or does not come to an end, and where no file can be written for a while.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "library.so")
            options = (*flags, f"-I{ROOT}", "-x", "c++", str(source), "-o", str(output))
            done = run([required_compiler(), *options], most_s)
            if done.returncode:
                raise BackendError(f"{COMPILER} refuses {source.name}: {_complaint(done)}")
            reason = why_not_loadable(output, entry) if entry is not None else ""
            if reason:
                raise BackendError(f"{COMPILER} made no library of {source.name}: {reason}")
            return output.read_bytes()
    except OSError as error:
        raise BackendError(f"{source.name} cannot be compiled: {error}") from None


def why_not_loadable(library: Path, entry: str) -> str:
    """Why a library cannot be loaded into this process and asked for ``entry``, or "".

    It stays loaded.
    """
    try:
        getattr(ctypes.CDLL(str(library)), entry)
    except (OSError, AttributeError) as error:
        return " ".join(str(error).split())
    return ""


def run(command: Sequence[str], most_s: float = MOST_S) -> subprocess.CompletedProcess[str]:
    """A finished command with its output as text; its exit status is the caller's to judge.

    Raises BackendError where it cannot be run, or runs for longer than ``most_s``.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            check=False,
            timeout=most_s,
        )
    except OSError as error:
        raise BackendError(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"{command[0]} was stopped: it took more than {most_s:g} s") from None


def required_compiler() -> str:
    """Where g++ is; raises BackendError without it."""
    found = compiler()
    if found is None:
        raise BackendError(NO_COMPILER)
    return found


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The first error that a compiler told, or else how it ended; one line."""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
    text = " ".join(lines[0].split())[:_LONGEST]
    return text or f"it ended with {done.returncode} and without a word"
