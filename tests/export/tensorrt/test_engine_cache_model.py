"""The engine cache against a dict in the order of use, by random sequences of calls."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from export.tensorrt.cache import EngineCache
from tests.export.tensorrt.cache_files import (
    DAY_S,
    FACTS,
    KEYS,
    age,
    file_of,
    header_bytes,
)


class CacheMachine(RuleBasedStateMachine):
    """A dict of plans in the order of their use, and a size limit."""

    room = 2500
    keys = st.sampled_from(KEYS[:5])

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.cache = EngineCache(Path(self.home.name), self.room)
        self.model: dict[str, bytes] = {}
        self.damaged: set[str] = set()

    def teardown(self) -> None:
        self.home.cleanup()

    def size(self, key: str) -> int:
        num_bytes = len(self.model[key])
        return num_bytes + header_bytes(num_bytes)

    def shrink(self, room: int, keep: str = "") -> tuple[int, int]:
        before = self.total()
        gone = 0
        for key in list(self.model):
            if self.total() > room and key != keep:
                self.forget(key)
                gone += 1
        return gone, before - self.total()

    def total(self) -> int:
        return sum(map(self.size, self.model))

    def forget(self, key: str) -> None:
        del self.model[key]
        self.damaged.discard(key)

    @rule(key=keys, num_bytes=st.integers(0, 1500), fill=st.binary(min_size=1, max_size=1))
    def put(self, key: str, num_bytes: int, fill: bytes) -> None:
        self.cache.put(key, fill * num_bytes, FACTS)
        if key in self.model:
            self.forget(key)
        self.model[key] = fill * num_bytes
        self.shrink(self.room, keep=key)

    @rule(key=keys)
    def get(self, key: str) -> None:
        if key in self.damaged:
            self.forget(key)
        assert self.cache.get(key) == self.model.get(key)
        if key in self.model:
            self.model[key] = self.model.pop(key)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key, plan in self.model.items() if plan]))
        path = file_of(self.cache, key)
        stat, content = path.stat(), path.read_bytes()
        flipped = content[-1] ^ (0 if key in self.damaged else 1)
        path.write_bytes(content[:-1] + bytes([flipped]))
        os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        self.damaged.add(key)

    @rule(room=st.integers(0, 3000))
    def clear_to_size(self, room: int) -> None:
        assert self.cache.clear(max_bytes=room) == self.shrink(room)

    @rule(count=st.integers(0, 5))
    def clear_old(self, count: int) -> None:
        old = list(self.model)[:count]
        for rank, key in enumerate(old):
            age(self.cache, key, 10 - rank)
        freed = sum(map(self.size, old))
        assert self.cache.clear(older_than_s=DAY_S) == (len(old), freed)
        for key in old:
            self.forget(key)

    @rule()
    def clear(self) -> None:
        assert self.cache.clear() == (len(self.model), self.total())
        self.model.clear()
        self.damaged.clear()

    @rule()
    def open_again(self) -> None:
        self.cache = EngineCache(self.cache.folder, self.room)

    @invariant()
    def the_folder_is_the_model(self) -> None:
        found = [(entry.key, entry.num_bytes, entry.facts) for entry in self.cache.entries()]
        assert found == [(key, self.size(key), FACTS) for key in reversed(self.model)]
        assert self.total() <= self.room or len(self.model) == 1


TestCacheMachine = CacheMachine.TestCase
