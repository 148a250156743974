"""A folder to write something in that is to be there whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.errors import UsageError


@contextmanager
def staged(folder: Path, name: str) -> Iterator[Path]:
    """An empty folder ``folder``/.``name``, which is gone afterwards; so is what a run that was
    killed has left there. ``folder`` must exist.

    Raises UsageError where another run is in it, and OSError.
    """
    place, lock = folder / f".{name}", folder / f".{name}.lock"
    with lock.open("a") as held:
        try:
            # The system lets go of it however a process ends.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(place) from None
        if os.fstat(held.fileno()).st_nlink == 0:  # its holder has removed it meanwhile
            raise _busy(place)
        try:
            if place.exists():
                shutil.rmtree(place)
            place.mkdir()
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _busy(place: Path) -> UsageError:
    return UsageError(f"another run writes {place}; let it end first")
