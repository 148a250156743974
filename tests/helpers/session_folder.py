"""Folders for what is built once a run of the tests, and gone when it ends.

All of a run's processes share one folder. Each holds it locked while it lives, and the system lets
go of the lock however a process ends: so whoever comes later removes what a run that was killed has
left, and nobody takes away what is still in use.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

HELD = ".held"


def session_folder(prefix: str) -> Path:
    """A new empty folder of this process; gone when all processes of the run have ended."""
    return Path(mkdtemp(prefix=f"{prefix}-", dir=_run_folder()))


def built_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` has filled. The run's first process to ask builds it, the others
    wait for it and read: nobody may change what is in it."""
    folder = _run_folder() / name
    is_whole = folder.with_name(f"{name}.whole")
    with _locked(folder.with_name(f"{name}.lock")):
        if not is_whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a build that failed or was killed
            folder.mkdir()
            build(folder)
            is_whole.touch()
    return folder


def sweep() -> None:
    """Remove the folders of runs that are over."""
    home = _home()
    with _locked(home / ".lock"):
        for folder in home.iterdir():
            if folder.is_dir() and _is_over(folder):
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _run_folder() -> Path:
    """Of this process's run: pytest-xdist names one that has several processes."""
    sweep()
    home = _home()
    folder = home / os.environ.get("PYTEST_XDIST_TESTRUNUID", f"process-{os.getpid()}")
    with _locked(home / ".lock"):
        folder.mkdir(exist_ok=True)
        held = os.open(folder / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_SH)
    atexit.register(_leave, held, os.getpid())
    return folder


def _leave(held: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked
        os.close(held)
        sweep()


def _is_over(folder: Path) -> bool:
    """Whether no process of that run is left."""
    try:
        with (folder / HELD).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:  # its first process ended before it had locked it
        return True
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _home() -> Path:
    """Of all runs of this user's."""
    home = Path(gettempdir()) / f"ssd-trt-tests-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    return home
