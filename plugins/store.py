"""Compiled kernels on disk, by the content of what they were made from.

    <key>.json        what was noted of a build, with the digest of its file
    <digest>.<kind>   the file

The note is published after its file, each by a rename, so a reader sees a whole entry or none.
A file that no longer has its digest counts as absent, and is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.errors import UsageError

REMEDY = "name another folder in SSD_TRT_CACHE"
READABLE = 0o644
"""Files are no secret, and who runs an image is not who built it."""
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
ROOT = Path(__file__).resolve().parents[1]
"""Includes name files from here: ``plugins/cuda/block.cuh``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A build found in the store: what was noted of it, and its file."""

    note: Mapping[str, Any]
    path: Path


class KernelStore:
    """Builds in one folder, which is made when the first is put. Safe for several processes.

    ``remedy`` is what helps where nothing can be put.
    """

    def __init__(self, folder: Path, remedy: str = REMEDY) -> None:
        self.folder = folder
        self._remedy = remedy

    def get(self, key: str) -> Entry | None:
        """The build of this key, or None where there is none or it was damaged."""
        try:
            note = json.loads((self.folder / f"{key}.json").read_bytes())
            path = self.folder / note["file"]
            content = path.read_bytes()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Entry(note, path) if note.get("sha256") == _sha256(content) else None

    def put(self, key: str, kind: str, content: bytes, note: Mapping[str, Any]) -> Entry:
        """Keep a build; raises UsageError where the folder cannot be written."""
        digest = _sha256(content)
        path = self.folder / f"{digest[:32]}.{kind}"
        whole = {**note, "file": path.name, "sha256": digest}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._publish(path, content)
            self._publish(self.folder / f"{key}.json", json.dumps(whole).encode())
        except OSError as error:
            raise UsageError(self._complaint(error.strerror or str(error))) from None
        return Entry(whole, path)

    def why_not_writable(self) -> str:
        """Why nothing could be put, as far as can be seen without trying, or ""."""
        there = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return ""
        return self._complaint(f"{there} {'cannot be written' if there.is_dir() else 'is a file'}")

    def _complaint(self, problem: str) -> str:
        return f"compiled kernels cannot be kept in {self.folder} ({problem}); {self._remedy}"

    def _publish(self, path: Path, content: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                os.fchmod(handle, READABLE)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


def source_files(source: Path) -> list[Path]:
    """A source and all that it includes in quotes, each once, the source first.

    Raises UsageError for an include that is not there.
    """
    found = [source]
    for file in found:
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            included = ROOT / name
            if not included.is_file():
                raise UsageError(f"{file.name} includes {name}, which is not in {ROOT}")
            if included not in found:
                found.append(included)
    return found


def key_of(source: Path, facts: Iterable[str]) -> str:
    """32 hex digits over the source, its includes, and whatever else decides the build."""
    digest = hashlib.sha256("\0".join(facts).encode())
    for file in source_files(source):
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:32]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
