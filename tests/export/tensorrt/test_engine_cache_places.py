"""The engine cache where files are not what they seem, and where nothing can be written."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from export.tensorrt.cache import EngineCache
from tests.export.tensorrt.cache_files import (
    FACTS,
    A,
    B,
    C,
    file_of,
    header_bytes,
    keys_of,
)
from tests.helpers.users import as_nobody

pytestmark = pytest.mark.timeout(60)  # what is opened blindly waits for ever


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users can enter (pytest's own are closed to them), with a short name."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def cache(reachable: Path, notes: list[str]) -> EngineCache:
    return EngineCache(reachable / "engines", 1_000_000, note=notes.append)


# --- what is not a file ---------------------------------------------------------------------


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to("fifo")


def link_to_an_engine(path: Path) -> None:
    """Not ours: we make none, and what it leads to is somebody else's to remove."""
    elsewhere = EngineCache(path.parent.parent / "elsewhere")
    elsewhere.put(A, b"plan", FACTS)
    path.symlink_to(file_of(elsewhere, A))


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a socket": bind,
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a FIFO": link_to_a_fifo,
    "a link to an engine": link_to_an_engine,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_neither_opened_nor_listed_nor_removed(
    cache: EngineCache, notes: list[str], kind: str
) -> None:
    cache.put(B, b"plan", FACTS)
    KINDS[kind](file_of(cache, A))
    before = os.lstat(file_of(cache, A))
    assert keys_of(cache) == [B]
    assert cache.get(A) is None
    assert cache.get(B) == b"plan"
    assert cache.clear() == (1, 4 + header_bytes(4))
    after = os.lstat(file_of(cache, A))
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert notes == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_takes_the_place_of_what_is_no_file(
    cache: EngineCache, notes: list[str], kind: str
) -> None:
    cache.folder.mkdir()
    KINDS[kind](file_of(cache, A))
    cache.put(A, b"plan", FACTS)
    if kind == "a folder":
        # It is the folder that has to go, not the unfinished file, which is gone already.
        fix = f"({file_of(cache, A)}; remove it, or rename it)"
        assert f"the engine cache could not be written: Is a directory {fix}" in notes[0]
        assert cache.get(A) is None
    else:
        assert notes == []
        assert cache.get(A) == b"plan"
        assert stat.S_ISREG(os.lstat(file_of(cache, A)).st_mode)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unfinished_engine_that_is_no_file_is_swept_unopened(
    cache: EngineCache, notes: list[str], kind: str
) -> None:
    """One put after the other failed, or waited for ever, and nothing said what to remove."""
    cache.folder.mkdir()
    unfinished = file_of(cache, A).with_name(f"{A}.engine.unfinished")
    KINDS[kind](unfinished)
    cache.put(B, b"plan", FACTS)
    cache.put(A, b"plan", FACTS)
    assert cache.get(B) == b"plan"
    if kind == "a folder":
        assert cache.get(A) is None
        assert f"could not be written: File exists ({unfinished}; remove" in notes[0]
    else:
        assert cache.get(A) == b"plan"
        assert notes == []
        assert not os.path.lexists(unfinished)


def test_a_folder_that_goes_away_is_an_empty_cache(cache: EngineCache) -> None:
    cache.put(A, b"plan", FACTS)
    shutil.rmtree(cache.folder)
    assert (cache.entries(), cache.get(A), cache.clear()) == ((), None, (0, 0))
    cache.put(A, b"plan", FACTS)
    assert cache.get(A) == b"plan"


# --- where nothing can be read or written ---------------------------------------------------


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write into ``folder``, root neither."""
    folder.chmod(0o555)
    try:
        with as_nobody():
            yield
    finally:
        folder.chmod(0o755)


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """Writing beyond ``most`` bytes of a file fails midway, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_an_engine_that_may_not_be_read_is_listed_and_replaced(cache: EngineCache) -> None:
    """It takes room, so it must be seen and cleared."""
    cache.put(A, b"plan", FACTS)
    cache.folder.chmod(0o777)
    file_of(cache, A).chmod(0)
    with as_nobody():
        [entry] = cache.entries()
        assert (entry.num_bytes, entry.facts) == (4 + header_bytes(4), None)
        assert cache.get(A) is None
        cache.put(A, b"another", FACTS)
        assert cache.get(A) == b"another"
    file_of(cache, A).chmod(0)
    with as_nobody():
        assert cache.clear() == (1, 7 + header_bytes(7))


def test_a_disk_that_fills_up_is_a_note_and_keeps_the_old(
    cache: EngineCache, notes: list[str]
) -> None:
    cache.put(A, b"old", FACTS)
    with small_files(50_000):
        cache.put(A, bytes(100_000), FACTS)
        cache.put(B, bytes(100_000), FACTS)
    assert len(notes) == 2
    assert "the engine cache could not be written: File too large" in notes[0]
    assert keys_of(cache) == [A]
    assert cache.get(A) == b"old"
    assert list(cache.folder.iterdir()) == [file_of(cache, A)]


def test_a_read_only_cache_is_read_and_a_put_is_a_note(
    cache: EngineCache, notes: list[str]
) -> None:
    cache.put(A, b"plan", FACTS)
    cache.put(B, b"plan", FACTS)
    file_of(cache, B).write_bytes(b"damage")
    with read_only(cache.folder):
        assert cache.get(A) == b"plan"
        assert cache.get(B) is None
        notes.clear()
        cache.put(C, b"plan", FACTS)
        with pytest.raises(PermissionError):
            cache.clear()
        assert len(cache.entries()) == 2
    [note] = notes
    assert "could not be written: Permission denied" in note
    assert "SSD_TRT_CACHE names another folder" in note


@pytest.mark.parametrize("place", ["file", "file/engines"])
def test_a_file_in_the_folders_place_is_a_note_and_an_error(reachable: Path, place: str) -> None:
    notes: list[str] = []
    (reachable / "file").touch()
    cache = EngineCache(reachable / place, note=notes.append)
    cache.put(A, b"plan", FACTS)
    assert cache.get(A) is None
    assert len(notes) == 1
    for look in (cache.entries, cache.clear):
        with pytest.raises(NotADirectoryError, match="Not a directory"):
            look()
