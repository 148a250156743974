"""Locks between processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file ``path``, one process or thread at a time; its folder must exist.

    ``on_wait`` is called once if another one holds it, and raises if that is not to be waited for.
    The file is removed at the end; that of a killed process stays but does not lock. Raises OSError
    when it cannot be made.
    """
    lock = _acquire(path, on_wait)
    try:
        yield
    finally:
        # Who removed the folder meanwhile has let another one make it, and a lock, anew.
        if _inode(path) == os.fstat(lock).st_ino:
            path.unlink(missing_ok=True)
        os.close(lock)


def _acquire(path: Path, on_wait: Callable[[], None] | None) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever we waited for has removed the file: another may hold a new one by now.
            if _inode(path) == os.fstat(lock).st_ino:
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
