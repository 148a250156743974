"""Processes that share an engine cache, and writers that die: with real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from export.tensorrt.cache import EngineCache
from tests.export.tensorrt.cache_files import (
    DAY_S,
    FACTS,
    A,
    B,
    file_of,
    keys_of,
)

ROOT = Path(__file__).resolve().parents[3]

# Says when the plan is written but not yet in place, and then waits to be stopped.
INTERRUPTED = """
import os, pathlib, sys, time
from export.tensorrt.cache import EngineCache, EngineFacts
def stop(descriptor):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = stop
cache = EngineCache(pathlib.Path(sys.argv[1]))
cache.put(sys.argv[2], bytes(100_000), EngineFacts("x", "tensorrt-rtx", "fp16", ()))
"""

# Puts, gets and clears a few keys at random; a plan repeats its key, so a mixed one would show.
BUSY = """
import pathlib, random, sys, time
from export.tensorrt.cache import EngineCache, EngineFacts
rng = random.Random(sys.argv[2])
def note(line):
    if "waiting for it" not in line:
        sys.exit(line)
cache = EngineCache(pathlib.Path(sys.argv[1]), 60_000, note=note)
facts = EngineFacts("x", "tensorrt-rtx", "fp16", ())
keys = [digit * 64 for digit in "0123"]
num_hits = 0
for _ in range(150):
    key = rng.choice(keys)
    match rng.choices(["put", "get", "clear"], [5, 10, 1])[0]:
        case "put":
            cache.put(key, key.encode() * rng.randint(1, 400), facts)
        case "get":
            plan = cache.get(key)
            if plan is not None:
                num_hits += 1
                if plan != key.encode() * (len(plan) // 64):
                    sys.exit("a foreign plan")
        case "clear":
            cache.clear(max_bytes=30_000)
            if any(entry.facts != facts for entry in cache.entries()):
                sys.exit("a half-written entry")
print(num_hits)
"""


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "engines", 1_000_000)


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def interrupted_put(cache: EngineCache, key: str) -> Iterator[subprocess.Popen[str]]:
    process = start(INTERRUPTED, cache.folder, key)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_processes_share_a_cache_without_errors_or_mixed_plans(cache: EngineCache) -> None:
    processes = [start(BUSY, cache.folder, seed) for seed in range(3)]
    results = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert all(int(hits) > 0 for hits, _ in results)
    entries = cache.entries()
    assert sum(entry.num_bytes for entry in entries) <= 60_000
    assert all(cache.get(entry.key) is not None for entry in entries)
    names = {path.name for path in cache.folder.iterdir()}
    assert names == {f"{entry.key}.engine" for entry in entries}


def test_a_killed_writer_leaves_no_entry_and_no_lock_and_the_next_put_sweeps(
    cache: EngineCache,
) -> None:
    cache.put(A, b"old", FACTS)
    with interrupted_put(cache, A) as process:
        process.kill()
        process.wait()
        left = file_of(cache, A).with_name(f"{A}.engine.unfinished")
        assert left.stat().st_size > 100_000
        assert cache.get(A) == b"old"
        cache.put(B, b"plan", FACTS)
    assert not left.exists()
    assert keys_of(cache) == [B, A]


def test_clear_frees_what_killed_writers_left(cache: EngineCache) -> None:
    with interrupted_put(cache, A) as process:
        process.kill()
        process.wait()
    count, num_bytes = cache.clear(older_than_s=DAY_S)
    assert count == 0
    assert num_bytes > 100_000


def test_an_interrupted_put_removes_what_it_wrote(cache: EngineCache) -> None:
    with interrupted_put(cache, A) as process:
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in complaint
    assert list(cache.folder.iterdir()) == []


def test_readers_do_not_wait_for_a_writer_but_writers_do(cache: EngineCache) -> None:
    cache.put(A, b"plan", FACTS)
    with interrupted_put(cache, B) as writer:
        assert cache.get(A) == b"plan"
        assert keys_of(cache) == [A]
        busy = start(BUSY, cache.folder, "second")
        with pytest.raises(subprocess.TimeoutExpired):
            busy.communicate(timeout=1)
        writer.kill()
        _, complaint = busy.communicate(timeout=60)
    assert busy.returncode == 0, complaint
