"""Kernels that TensorRT-RTX compiled for this GPU, kept in a file beside the plan.

A plan of TensorRT-RTX holds no finished kernels: they are compiled when an engine first runs a
shape, which takes seconds for a whole engine, and can be carried over to the next process. The
file is a convenience: one that is damaged, belongs to another plan or is refused by TensorRT-RTX
(other GPU, driver or release) is ignored with a note and replaced at the end.

    one line of JSON (``_Header``), then what ``IRuntimeCache.serialize`` gave
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engines.codec import decode, encode
from runtime.backends.tensorrt.vendor_api import RuntimeCache

FORMAT = "ssd-trt runtime cache 1"
_LONGEST_HEADER = 4096

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Header:
    format: str
    plan: str
    sha256: str
    num_bytes: int


def cache_path(plan: Path, gpu: str) -> Path:
    """Where the kernels of ``plan`` for one kind of GPU are kept: ``engine.plan.NAME.kernels``."""
    return plan.with_name(f"{plan.name}.{re.sub(r'[^A-Za-z0-9.]+', '-', gpu).strip('-')}.kernels")


class KernelFile:
    """The file of one plan on one kind of GPU. ``plan_sha256`` is that of the plan."""

    def __init__(self, path: Path, plan_sha256: str, note: Note) -> None:
        self.path = path
        self._plan_sha256 = plan_sha256
        self._note = note
        self._stored: str | None = None

    def load(self, cache: RuntimeCache) -> None:
        """Give ``cache`` what the file holds, if it is sound and fits."""
        try:
            with self.path.open("rb") as file:
                line, blob = file.readline(_LONGEST_HEADER), file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self._note(f"cannot read {self.path} ({error.strerror}); kernels are compiled anew")
            return
        why = self._fault(line, blob)
        if why is None and not cache.deserialize(blob):
            why = "is of another GPU, driver or release"
        if why is None:
            self._stored = hashlib.sha256(blob).hexdigest()
        else:
            self._note(f"{self.path} {why}; its kernels are compiled anew and replaced")

    def save(self, cache: RuntimeCache) -> None:
        """Write the file whole or not at all, unless it holds the same already."""
        memory = cache.serialize()
        if memory is None:
            self._note(f"TensorRT-RTX gave no kernels to keep in {self.path}")
            return
        blob = bytes(memory)
        found = hashlib.sha256(blob).hexdigest()
        if found == self._stored:
            return
        header = _Header(FORMAT, self._plan_sha256, found, len(blob))
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                file.write(json.dumps(encode(header)).encode() + b"\n")
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            self._note(
                f"cannot write {self.path} ({error.strerror}), so the next start compiles the same "
                "kernels again; make the bundle's folder writable once"
            )
        else:
            self._stored = found

    def _fault(self, line: bytes, blob: bytes) -> str | None:
        """Why the content is not to be given to TensorRT-RTX, which trusts what it reads."""
        try:
            header = decode(_Header, json.loads(line))
        except (ValueError, RecursionError):
            return "is damaged"
        if header.format != FORMAT or header.plan != self._plan_sha256:
            return "is of another engine"
        if header.num_bytes != len(blob) or header.sha256 != hashlib.sha256(blob).hexdigest():
            return "is damaged"
        return None
