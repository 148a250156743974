"""The noise of a position is computed once, shared, and that of its specification."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from plugins.noise import reference
from runtime.sampling import noise
from runtime.sampling.noise import NoiseCache, gumbel


def test_the_specification_is_one() -> None:
    """A copy beside the kernels' form could drift, and CPU and GPU would draw different tokens."""
    for name in ("Purpose", "bits", "gumbel", "uniform"):
        assert getattr(noise, name) is getattr(reference, name)


def test_cache_returns_the_noise_read_only():
    cache = NoiseCache(vocab_size=64)
    values = cache.at(3, 5, 64)
    np.testing.assert_array_equal(values, gumbel(3, 5, 64))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    np.testing.assert_array_equal(cache.for_seed(3, 10)(5), gumbel(3, 5, 10))


@pytest.fixture
def computed(monkeypatch) -> list[tuple[int, int, int]]:
    """Every (seed, position, vocab_size) that is computed."""
    calls: list[tuple[int, int, int]] = []

    def counting(seed: int, position: int, vocab_size: int) -> np.ndarray:
        calls.append((seed, position, vocab_size))
        return gumbel(seed, position, vocab_size)

    monkeypatch.setattr(noise, "gumbel", counting)
    return calls


def test_a_position_is_computed_once_for_both_sides(computed):
    cache = NoiseCache(vocab_size=100)
    for size in (40, 100, 7):
        assert cache.at(1, 2, size).shape == (size,)
    assert computed == [(1, 2, 100)]


def test_cache_without_a_size_widens_when_the_target_asks_for_more(computed):
    cache = NoiseCache()
    for position in (0, 1):
        cache.at(1, position, 40)
        np.testing.assert_array_equal(cache.at(1, position, 100), gumbel(1, position, 100))
    assert computed == [(1, 0, 40), (1, 0, 100), (1, 1, 100)]


def test_seeds_do_not_share_noise(computed):
    cache = NoiseCache(vocab_size=8)
    assert cache.at(1, 0, 8).tolist() != cache.at(2, 0, 8).tolist()
    assert len(computed) == 2


def test_cache_keeps_the_positions_used_last(computed):
    cache = NoiseCache(vocab_size=8, capacity=3)
    for position in (0, 1, 2, 0, 3):  # 3 drops 1, the one unused for longest
        cache.at(0, position, 8)
    computed.clear()
    for position in (0, 2, 3):
        cache.at(0, position, 8)
    assert computed == []
    cache.at(0, 1, 8)
    assert computed == [(0, 1, 8)]


def test_two_threads_compute_a_position_once_and_do_not_hold_up_others(monkeypatch):
    """The draft's thread must not make the target wait for noise it does not need."""
    started, release, calls = threading.Event(), threading.Event(), []

    def slow(seed: int, position: int, vocab_size: int) -> np.ndarray:
        calls.append(position)
        if position == 0:
            started.set()
            assert release.wait(10)
        return gumbel(seed, position, vocab_size)

    monkeypatch.setattr(noise, "gumbel", slow)
    cache, results = NoiseCache(vocab_size=8), []
    threads = [threading.Thread(target=lambda: results.append(cache.at(0, 0, 8))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    cache.at(0, 1, 8)  # returns although position 0 is still being computed
    release.set()
    for thread in threads:
        thread.join(10)
    assert calls == [0, 1]
    assert len(results) == 2
    assert results[0].tobytes() == results[1].tobytes() == gumbel(0, 0, 8).tobytes()
