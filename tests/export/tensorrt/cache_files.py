"""What the tests of the engine cache share: keys, facts, and a look at its files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from export.tensorrt import cache as module
from export.tensorrt.cache import EngineCache, EngineFacts

FACTS = EngineFacts("smollm2-135m", "tensorrt-rtx", "fp16", ("8.9", "12.0"))
KEYS = [digit * 64 for digit in "0123456789abcdef"]
A, B, C = KEYS[10:13]
DAY_S = 86400.0


def header_bytes(num_bytes: int) -> int:
    """What a file of the cache holds besides its plan of this size."""
    return len(module._header(A, bytes(num_bytes), FACTS))


def keys_of(cache: EngineCache) -> list[str]:
    return [entry.key for entry in cache.entries()]


def file_of(cache: EngineCache, key: str) -> Path:
    return cache.folder / f"{key}.engine"


def age(cache: EngineCache, key: str, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(file_of(cache, key), (then, then))
