"""Folders for what is built once a test session, and gone when it ends."""

from __future__ import annotations

import atexit
import shutil
from pathlib import Path
from tempfile import mkdtemp


def session_folder(prefix: str) -> Path:
    """A new empty folder in the system's temporary one; this process removes it when it ends."""
    folder = Path(mkdtemp(prefix=f"{prefix}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
