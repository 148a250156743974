"""The engine cache: what it keeps and drops, damaged files, clocks that go wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import export.tensorrt.cache as module
from engines.errors import UsageError
from export.tensorrt.cache import EngineCache
from tests.export.tensorrt.cache_files import (
    DAY_S,
    FACTS,
    KEYS,
    A,
    B,
    C,
    age,
    file_of,
    header_bytes,
    keys_of,
)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, notes: list[str]) -> EngineCache:
    return EngineCache(tmp_path / "engines", 1_000_000, note=notes.append)


def test_a_plan_comes_back_as_it_was_put(cache: EngineCache) -> None:
    plan = b"line one\n{}\n" + bytes(range(256))  # as a header might look
    assert cache.get(A) is None
    cache.put(A, plan, FACTS)
    cache.put(B, b"", FACTS)
    assert (cache.get(A), cache.get(B), cache.get(C)) == (plan, b"", None)
    cache.put(A, b"another", FACTS)
    assert cache.get(A) == b"another"


def test_entries_say_size_use_and_facts_last_used_first(cache: EngineCache) -> None:
    assert cache.entries() == ()
    assert not cache.folder.exists()
    before = time.time()
    for key in (A, B, C):
        cache.put(key, bytes(100), FACTS)
    cache.get(A)
    assert keys_of(cache) == [A, C, B]
    for entry in cache.entries():
        assert entry.facts == FACTS
        assert (
            entry.num_bytes == 100 + header_bytes(100) == file_of(cache, entry.key).stat().st_size
        )
        assert before - 1 <= entry.last_used_s <= time.time() + 1


def test_the_least_recently_used_goes_but_never_the_one_just_put(cache: EngineCache) -> None:
    room = 3 * (100 + header_bytes(100))
    cache = EngineCache(cache.folder, room)
    for key in KEYS[:3]:
        cache.put(key, bytes(100), FACTS)
    cache.get(KEYS[0])
    cache.put(KEYS[3], bytes(100), FACTS)
    assert keys_of(cache) == [KEYS[3], KEYS[0], KEYS[2]]
    cache.put(A, bytes(10 * room), FACTS)
    assert keys_of(cache) == [A]
    assert cache.get(A) == bytes(10 * room)


def test_a_limit_of_0_keeps_nothing_and_touches_nothing(cache: EngineCache) -> None:
    off = EngineCache(cache.folder, 0)
    off.put(A, b"plan", FACTS)
    assert not cache.folder.exists()


def test_a_plan_that_is_being_read_survives_its_removal(cache: EngineCache) -> None:
    plan = os.urandom(300_000)
    cache.put(A, plan, FACTS)
    with file_of(cache, A).open("rb") as reader:
        begin = reader.read(1000)
        cache.clear()
        assert cache.get(A) is None
        assert (begin + reader.read()).endswith(plan)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit in the plan": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "cut short": lambda data: data[:-1],
    "longer": lambda data: data + b"!",
    "empty": lambda _data: b"",
    "not JSON": lambda data: b"!" + data,
    "not text": lambda data: b"\xff\xfe" + data,
    "not an object": lambda data: b"[1]\n" + data.partition(b"\n")[2],
    "no plan size": lambda data: data.replace(b'"num_bytes"', b'"bytes"'),
    "a size that is a word": lambda data: data.replace(b'"num_bytes": 100', b'"num_bytes": "1e2"'),
    "a bottomless header": lambda data: b"[" * 60_000 + data,
    "one endless line": lambda _data: b" " * 200_000,
    "another engine's file": lambda data: data.replace(A.encode(), B.encode()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_a_miss_and_goes(
    cache: EngineCache, notes: list[str], damage: str
) -> None:
    cache.put(A, bytes(100), FACTS)
    path = file_of(cache, A)
    data = DAMAGES[damage](path.read_bytes())
    assert data != path.read_bytes()
    path.write_bytes(data)
    [entry] = cache.entries()
    assert entry.num_bytes == len(data)
    assert (entry.facts is None) == (damage != "a flipped bit in the plan")
    assert cache.get(A) is None
    assert not path.exists()
    assert notes == ["cached engine aaaaaaaaaaaa is damaged and will be compiled again"]
    cache.put(A, b"plan", FACTS)
    assert cache.get(A) == b"plan"


def test_a_damaged_entry_that_was_replaced_meanwhile_stays(
    cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put(A, b"plan", FACTS)
    file_of(cache, A).write_bytes(b"damage")
    read_plan = module._read_plan

    def read_and_be_overtaken(*arguments: object) -> bytes | None:
        plan = read_plan(*arguments)  # type: ignore[arg-type]
        cache.put(A, b"plan", FACTS)
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(module, "_read_plan", read_and_be_overtaken)
        assert cache.get(A) is None
    assert cache.get(A) == b"plan"


def test_damaged_entries_count_and_are_cleared(cache: EngineCache) -> None:
    cache.put(A, bytes(100), FACTS)
    file_of(cache, B).write_bytes(b"x" * 5000)
    room = EngineCache(cache.folder, 4000)
    room.put(C, b"plan", FACTS)
    assert sorted(keys_of(cache)) == [C]
    file_of(cache, B).write_bytes(b"x" * 5000)
    assert cache.clear() == (2, 5000 + 4 + header_bytes(4))


def test_empty_entries_are_cleared_when_nothing_may_be_left(cache: EngineCache) -> None:
    """They add nothing to the total, which was 0 before they were reached."""
    for clear in (cache.clear, lambda: cache.clear(max_bytes=0)):
        cache.put(A, b"plan", FACTS)
        for key in (B, C):
            file_of(cache, key).touch()
        assert len(keys_of(cache)) == 3
        assert clear() == (3, 4 + header_bytes(4))
        assert keys_of(cache) == []


def test_foreign_files_are_neither_listed_nor_removed(cache: EngineCache) -> None:
    cache.folder.mkdir()
    foreign = ["notes.txt", "x.engine", f"{A}.engine.old", f"{A.upper()}.engine", "a.unfinished"]
    for name in foreign:
        (cache.folder / name).write_bytes(b"mine")
    file_of(cache, B).mkdir()
    cache.put(C, b"plan", FACTS)
    assert keys_of(cache) == [C]
    assert cache.get(B) is None
    assert cache.clear()[0] == 1
    left = {path.name for path in cache.folder.iterdir()}
    assert left == {*foreign, f"{B}.engine"}


@pytest.mark.parametrize("key", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_only_a_hash_is_a_key(cache: EngineCache, key: str) -> None:
    with pytest.raises(ValueError, match="is not a SHA-256"):
        cache.get(key)
    with pytest.raises(ValueError, match="is not a SHA-256"):
        cache.put(key, b"plan", FACTS)


def test_clear_by_age_and_by_size(cache: EngineCache) -> None:
    assert cache.clear() == (0, 0)
    assert not cache.folder.exists()
    size = 100 + header_bytes(100)
    for days, key in enumerate(KEYS[:6]):
        cache.put(key, bytes(100), FACTS)
        age(cache, key, days + 0.5)
    assert cache.clear(older_than_s=5 * DAY_S) == (1, size)
    assert cache.clear(max_bytes=4 * size) == (1, size)
    assert cache.clear(older_than_s=3 * DAY_S, max_bytes=2 * size) == (2, 2 * size)
    assert keys_of(cache) == KEYS[:2]
    assert cache.clear(max_bytes=2 * size) == (0, 0)
    assert cache.clear(max_bytes=2 * size - 1) == (1, size)
    assert cache.clear() == (1, size)


class Clock:
    """In place of the cache's ``time`` module."""

    def __init__(self) -> None:
        self.now_ns = 1_796_040_000_000_000_000

    def time_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def go(self, days: float) -> None:
        self.now_ns += int(days * DAY_S * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_the_order_of_use_outlives_a_clock_that_is_set_back(
    cache: EngineCache, clock: Clock
) -> None:
    """Engines of the time before would stay for ever, and those in use would go."""
    for key in (A, B, C):
        cache.put(key, bytes(100), FACTS)
    clock.go(days=-30)
    assert cache.get(A) is not None
    assert keys_of(cache) == [A, C, B]
    clock.go(days=-1)
    room = EngineCache(cache.folder, 3 * (100 + header_bytes(100)))
    room.put(KEYS[0], bytes(100), FACTS)
    assert keys_of(cache) == [KEYS[0], A, C]


def test_what_was_used_in_the_future_is_as_old_as_what_is_used_now(
    cache: EngineCache, clock: Clock
) -> None:
    cache.put(A, bytes(100), FACTS)
    clock.go(days=-30)
    assert cache.clear(older_than_s=1) == (0, 0)
    assert cache.clear(older_than_s=0) == (1, 100 + header_bytes(100))


def test_the_folder_and_the_limit_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.delenv("SSD_TRT_CACHE_GB", raising=False)
    assert EngineCache().folder == tmp_path / "engines"
    assert EngineCache().max_bytes == 20_000_000_000
    for text, num_bytes in {"": 20_000_000_000, "0.5": 500_000_000, "0": 0}.items():
        monkeypatch.setenv("SSD_TRT_CACHE_GB", text)
        assert EngineCache().max_bytes == num_bytes
    for text in ("twenty", "-1", "nan", "inf", "1e299", "20GB"):
        monkeypatch.setenv("SSD_TRT_CACHE_GB", text)
        with pytest.raises(UsageError, match=f"SSD_TRT_CACHE_GB is '{text}'"):
            EngineCache()
        assert EngineCache(max_bytes=5).max_bytes == 5
