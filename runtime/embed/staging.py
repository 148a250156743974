"""A folder to write something in that is to be there whole, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.errors import UsageError
from engines.locks import locked


@contextmanager
def staged(folder: Path, name: str) -> Iterator[Path]:
    """An empty folder ``folder``/.``name``, which is gone afterwards; so is what a run that was
    killed has left there. ``folder`` must exist.

    Raises UsageError where another run is in it, and OSError.
    """
    place = folder / f".{name}"

    def refuse() -> None:
        raise UsageError(f"another run writes {place}; let it end first")

    with locked(folder / f".{name}.lock", refuse):
        try:
            if place.exists():
                shutil.rmtree(place)
            place.mkdir()
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
