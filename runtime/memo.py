"""Measurements of this machine, kept between runs: what a key was found to be."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from engines.cachedir import cache_dir

FILE = "machine.json"


class Memo:
    """A small JSON file of results by key. Losing it costs only measuring again, so a damaged or
    unwritable file is not an error."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = (folder or cache_dir()) / FILE

    def get(self, key: str) -> object | None:
        return self._read().get(key)

    def put(self, key: str, value: object) -> None:
        """Keep a JSON value; readers see the old file or the new one, never a part."""
        entries = {**self._read(), key: value}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{FILE}.")
            try:
                with os.fdopen(handle, "w") as file:
                    json.dump(entries, file, indent=1)
                os.replace(name, self._path)
            except BaseException:
                os.unlink(name)
                raise

    def _read(self) -> dict[str, object]:
        try:
            if not self._path.is_file():  # reading a pipe or a device would never end
                return {}
            entries = json.loads(self._path.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return entries if isinstance(entries, dict) else {}
