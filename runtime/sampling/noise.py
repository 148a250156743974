"""The noise of recent positions, computed once and shared by both sides of a pair.

The noise itself, a pure function of (seed, position, id), is specified and computed in
`plugins.noise.reference`, whose names stand here too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from plugins.noise.reference import Purpose, bits, gumbel, uniform

__all__ = ["NoiseCache", "Purpose", "bits", "gumbel", "uniform"]

FloatArray = npt.NDArray[np.float32]


class NoiseCache:
    """The Gumbel noise of recent positions, shared by the draft and the target side.

    Both sides ask for the same positions, often at once from two threads: a position is
    computed once, and asking for one never waits for another. The least recently used of
    `capacity` vectors is dropped; a round of K drafted tokens touches 2K + 2 positions of
    each sequence in flight, and a vector takes 4 bytes an id.

    Args:
        vocab_size: ids to compute at least, the target's vocabulary. Without it the cache
            learns the size from the widest question, and computes a position again when
            one side asks for more ids of it than the other did.
        capacity: number of positions to keep.
    """

    def __init__(self, vocab_size: int = 0, capacity: int = 64) -> None:
        self._vocab_size = vocab_size
        self._capacity = capacity
        self._vectors: OrderedDict[tuple[int, int], _Vector] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, seed: int, position: int, vocab_size: int) -> FloatArray:
        """`gumbel(seed, position, vocab_size)`, float32 [V], read-only and shared."""
        key = (seed, position)
        with self._lock:
            self._vocab_size = max(self._vocab_size, vocab_size)
            vector = self._vectors.get(key)
            if vector is None or vector.vocab_size < vocab_size:
                vector = self._vectors[key] = _Vector(seed, position, self._vocab_size)
            self._vectors.move_to_end(key)
            if len(self._vectors) > self._capacity:
                self._vectors.popitem(last=False)
        return vector.values()[:vocab_size]

    def for_seed(self, seed: int, vocab_size: int) -> Callable[[int], FloatArray]:
        """The noise of one sequence as a function of the position."""
        return partial(self.at, seed, vocab_size=vocab_size)


class _Vector:
    """One position's noise, computed by the first thread that needs it."""

    __slots__ = ("_lock", "_position", "_seed", "_values", "vocab_size")

    def __init__(self, seed: int, position: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._position = position
        self._values: FloatArray | None = None
        self._lock = threading.Lock()

    def values(self) -> FloatArray:
        with self._lock:
            if self._values is None:
                values = gumbel(self._seed, self._position, self.vocab_size)
                values.flags.writeable = False
                self._values = values
            return self._values
