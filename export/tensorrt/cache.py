"""Compiled engines, kept so that nothing is compiled twice.

One file per engine, ``KEY.engine``: a line of JSON (``_Header``), then the plan. It appears by one
rename and goes by one unlink, so readers need no lock, and a plan being read stays readable. What
changes the folder holds the lock. A file's modification time is its last use. What bears such a
name and is no regular file (a FIFO, a folder, a link) is not ours: it is never opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engines.bundle import MODEL_FILE
from engines.cachedir import cache_dir
from engines.codec import decode, encode
from engines.errors import UsageError
from engines.locks import locked
from engines.profiles import ShapeProfile
from export.disk import sync

DEFAULT_GB = 20.0
MOST_GB = 1e9  # beyond any disk
LIMIT_VARIABLE = "SSD_TRT_CACHE_GB"
_NAME = re.compile(r"([0-9a-f]{64})\.engine")
_UNFINISHED = ".unfinished"
_LONGEST_HEADER = 1 << 16
_TICK_NS = 1000  # between two uses, so that their order survives in a float of seconds


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine is, for people: ``source`` is the name of the checkpoint."""

    source: str
    backend: str
    precision: str
    capabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """``num_bytes`` on disk; ``last_used_s`` since the epoch; no ``facts``: it cannot be read."""

    key: str
    num_bytes: int
    last_used_s: float
    facts: EngineFacts | None


@dataclass(frozen=True, slots=True)
class _Header:
    key: str
    sha256: str
    num_bytes: int
    facts: EngineFacts


class EngineCache:
    """Plans by key, the least recently used ones dropped beyond ``max_bytes``.

    The folder is ``cache_dir()/engines`` unless given, the limit $SSD_TRT_CACHE_GB or 20 GB; a
    limit of 0 keeps nothing. Any number of processes and threads may share a folder. Trouble with
    it never fails a build: ``note`` then receives one line. Raises UsageError when the variable
    is not a size.
    """

    def __init__(
        self,
        folder: Path | None = None,
        max_bytes: int | None = None,
        note: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.folder = folder or cache_dir() / "engines"
        self.max_bytes = _limit_from_environment() if max_bytes is None else max_bytes
        self._note = note

    def get(self, key: str) -> bytes | None:
        """The plan as it was put, and it counts as used now; None when there is none.

        A damaged one is removed and counts as none.
        """
        try:
            with _open_regular(self._path(key)) as file:
                plan = _read_plan(file, key)
                if plan is None:
                    self._note(f"cached engine {key[:12]} is damaged and will be compiled again")
                    self._discard(self._path(key), file)
                else:
                    self._mark_used(file)
        except OSError:
            return None
        return plan

    def put(self, key: str, plan: bytes, facts: EngineFacts) -> None:
        """Keep a plan, whole or not at all; on disk when this returns. May drop others."""
        if self.max_bytes == 0:
            return
        try:
            with self._locked():
                self._sweep()
                self._write(self._path(key), _header(key, plan, facts), plan)
                self._shrink(self.max_bytes, keep=key)
        except OSError as error:
            name = error.filename2 or error.filename  # of a rename, the name that is taken
            fix = "; remove it, or rename it" if error.errno in (errno.EEXIST, errno.EISDIR) else ""
            where = f" ({name}{fix})" if name else ""
            self._note(
                f"the engine cache could not be written: {error.strerror or error}{where}; the "
                "build goes on, SSD_TRT_CACHE names another folder (for fetched checkpoints, too)"
            )

    def entries(self) -> tuple[CacheEntry, ...]:
        """All engines, the last used first. Raises OSError when the folder cannot be read."""
        if not self._exists():
            return ()
        entries = [entry for entry in map(_entry, self._files()) if entry is not None]
        return tuple(sorted(entries, key=lambda entry: (-entry.last_used_s, entry.key)))

    def clear(
        self, older_than_s: float | None = None, max_bytes: int | None = None
    ) -> tuple[int, int]:
        """Remove engines; returns how many, and the bytes freed.

        All of them, or those not used for ``older_than_s`` seconds and then the least recently used
        until ``max_bytes`` are left. Files of others stay. Raises OSError when it cannot.
        """
        if not self._exists():
            return 0, 0
        if max_bytes is None and older_than_s is None:
            max_bytes = 0
        with self._locked():
            num_bytes = self._sweep()
            old: list[CacheEntry] = []
            if older_than_s is not None:
                now = time.time()
                latest = now - older_than_s
                old = [each for each in self.entries() if min(each.last_used_s, now) <= latest]
                self._remove(old)
            if max_bytes is not None:
                old += self._shrink(max_bytes)
        return len(old), num_bytes + sum(entry.num_bytes for entry in old)

    def _path(self, key: str) -> Path:
        path = self.folder / f"{key}.engine"
        if not _NAME.fullmatch(path.name):
            raise ValueError(f"{key!r} is not a SHA-256 in hex")
        return path

    def _exists(self) -> bool:
        """Raises OSError when something that is no folder, or out of reach, is in its place."""
        try:
            mode = self.folder.stat().st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.folder))
        return True

    def _files(self) -> list[os.DirEntry[str]]:
        with os.scandir(self.folder) as found:
            return [
                item
                for item in found
                if _NAME.fullmatch(item.name) and item.is_file(follow_symlinks=False)
            ]

    def _mark_used(self, file: BinaryIO) -> None:
        """Make ``file`` the engine used last, where its times may be written.

        A clock that was set back has left others in the future: they move to just before now, in
        their order, or they would outlive all that is used from here on.
        """
        with suppress(OSError):
            # Not utime's own "now": it ticks every few milliseconds and would lose the order.
            now = time.time_ns()
            os.utime(file.fileno(), ns=(now, now))
            times = {item.path: item.stat(follow_symlinks=False) for item in self._files()}
            newest_first = sorted(times, key=lambda path: -times[path].st_mtime_ns)
            future = [path for path in newest_first if times[path].st_mtime_ns > now]
            for rank, path in enumerate(future, start=1):
                before = now - rank * _TICK_NS
                os.utime(path, ns=(before, before), follow_symlinks=False)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        told = f"another process is changing the engine cache {self.folder}; waiting for it"
        with locked(self.folder / ".lock", lambda: self._note(told)):
            yield

    def _sweep(self) -> int:
        """Remove what killed writers left, with the lock held; returns the bytes freed."""
        num_bytes = 0
        for path in self.folder.glob(f"*{_UNFINISHED}"):
            status = path.lstat()
            if _NAME.fullmatch(path.stem) and not stat.S_ISDIR(status.st_mode):
                num_bytes += status.st_size
                path.unlink()
        return num_bytes

    def _write(self, path: Path, header: bytes, plan: bytes) -> None:
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            with unfinished.open("xb") as file:
                file.write(header)
                file.write(plan)
                file.flush()
                self._mark_used(file)
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
        sync(self.folder)

    def _discard(self, path: Path, file: BinaryIO) -> None:
        """Remove the damaged ``file``, unless another process has replaced it by now."""
        with self._locked():
            if os.path.samestat(path.lstat(), os.fstat(file.fileno())):
                path.unlink()

    def _shrink(self, max_bytes: int, keep: str = "") -> list[CacheEntry]:
        """Remove the least recently used until ``max_bytes`` are left; returns the removed."""
        entries = self.entries()
        # An empty file takes a byte: when nothing may be left, it has to go, too.
        excess = sum(max(1, entry.num_bytes) for entry in entries) - max_bytes
        removed = []
        for entry in reversed(entries):
            if excess <= 0:
                break
            if entry.key != keep:
                removed.append(entry)
                excess -= max(1, entry.num_bytes)
        self._remove(removed)
        return removed

    def _remove(self, entries: Iterable[CacheEntry]) -> None:
        for entry in entries:
            self._path(entry.key).unlink(missing_ok=True)


def engine_key(
    onnx_folder: Path,
    vendor_version: str,
    precision: str,
    capabilities: Iterable[str],
    profiles: Iterable[ShapeProfile],
    plugin_digest: str,
) -> str:
    """SHA-256 (hex) over everything that decides a plan's content, this compiler's source included.

    ``vendor_version`` names the library and its version and, when the plan fits only the device
    that compiles it, the device. The order of capabilities does not count, that of profiles does.
    """
    facts = {
        "onnx": [_file_hash(onnx_folder / f"{MODEL_FILE}{suffix}") for suffix in ("", ".data")],
        "builder": vendor_version,
        "precision": precision,
        "capabilities": sorted(set(capabilities)),
        "profiles": encode(tuple(profiles)),
        "plugins": plugin_digest,
        "source": [_file_hash(path) for path in sorted(Path(__file__).parent.glob("*.py"))],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(key: str, plan: bytes, facts: EngineFacts) -> bytes:
    header = _Header(key, hashlib.sha256(plan).hexdigest(), len(plan), facts)
    return json.dumps(encode(header)).encode() + b"\n"


def _read_header(file: BinaryIO, key: str) -> _Header | None:
    """The header, with ``file`` then at the plan; None unless it is sound and the size fits."""
    try:
        header = decode(_Header, json.loads(file.readline(_LONGEST_HEADER)))
    except (ValueError, RecursionError):
        return None
    whole = os.fstat(file.fileno()).st_size == file.tell() + header.num_bytes
    return header if whole and header.key == key else None


def _read_plan(file: BinaryIO, key: str) -> bytes | None:
    header = _read_header(file, key)
    if header is None:
        return None
    plan = file.read()
    return plan if hashlib.sha256(plan).hexdigest() == header.sha256 else None


def _open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises OSError for what is no regular file, without opening it.

    Opening a FIFO waits for a writer, and a device may act on it.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    # Something else may have taken its place by now.
    cautious = os.O_NONBLOCK | os.O_NOFOLLOW
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | cautious))


def _entry(item: os.DirEntry[str]) -> CacheEntry | None:
    """None when the file is no longer there."""
    path = Path(item.path)
    try:
        status = item.stat(follow_symlinks=False)
        facts = _facts(path)
    except FileNotFoundError:
        return None
    return CacheEntry(path.stem, status.st_size, status.st_mtime_ns / 1e9, facts)


def _facts(path: Path) -> EngineFacts | None:
    try:
        with _open_regular(path) as file:
            header = _read_header(file, path.stem)
    except FileNotFoundError:
        raise
    except OSError:  # it may not be read, and takes room all the same
        return None
    return None if header is None else header.facts


def _limit_from_environment() -> int:
    text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_GB)
    try:
        size_gb = float(text)
    except ValueError:
        size_gb = math.nan
    if not 0 <= size_gb <= MOST_GB:
        raise UsageError(f"{LIMIT_VARIABLE} is {text!r}; expected a number of GB, for example 20")
    return int(size_gb * 1e9)
