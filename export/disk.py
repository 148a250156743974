"""Writes that are on disk when they return."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
