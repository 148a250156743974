"""The noise equals its written specification, and is uniform and uncorrelated.

The statistical tests use fixed seeds, so they cannot flicker; each limit would be exceeded by
a perfect generator with probability 1e-6.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.noise import reference
from plugins.noise.reference import Purpose, bits, gumbel, uniform

WORD = 2**64
SEEDS = [0, 1, 2, 3, 7, 2**32 - 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1]
Z_LIMIT = NormalDist().inv_cdf(1 - 0.5e-6)

seeds = st.integers(0, WORD - 1)
positions = st.integers(0, 2**40)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """The specification's ten rounds, in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        hi0, lo0 = divmod(0xD2E7470EE14C6C93 * c0, WORD)
        hi1, lo1 = divmod(0xCA5A826395121157 * c2, WORD)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0 = (k0 + 0x9E3779B97F4A7C15) % WORD
        k1 = (k1 + 0xBB67AE8584CAA73B) % WORD
    return [c0, c1, c2, c3]


def chi_square_limit(degrees: int) -> float:
    """What chi-square exceeds with probability 1e-6 (Wilson and Hilferty's approximation)."""
    z = NormalDist().inv_cdf(1 - 1e-6)
    return degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


# --- the specification, bit for bit ---


@settings(max_examples=30)
@given(seed=seeds, position=positions, token=st.integers(0, 2000))
def test_bits_follow_the_written_key_counter_and_half(seed, position, token):
    words = philox([1 + token // 8, position, 0, 0], [seed, 0])
    word = words[token % 8 // 2]
    half = word >> 32 if token % 2 else word % 2**32
    assert int(bits(seed, position, token + 1)[token]) == half


@settings(max_examples=30)
@given(seed=seeds, position=positions, purpose=st.sampled_from(list(Purpose)[1:]))
def test_uniform_follows_the_written_key_counter_and_word(seed, position, purpose):
    word = philox([1, position, 0, 0], [seed, int(purpose)])[0]
    value = uniform(seed, position, purpose)
    assert 0 < value < 1
    assert value * 2**53 == 2 * (word >> 12) + 1


def test_golden_bits_do_not_change():
    """A seed must mean the same tokens in every release."""
    assert [f"{r:08x}" for r in bits(0, 0, 5)] == [
        "08e4d89b",
        "02f4ba64",
        "9ca8c5b2",
        "3dd62b0b",
        "5d902e79",
    ]
    assert [f"{r:08x}" for r in bits(2**64 - 1, 12345, 49152)[-3:]] == [
        "c6b2ca39",
        "7a357651",
        "2c2cc9ff",
    ]
    assert [uniform(7, 9, p).hex() for p in list(Purpose)[1:]] == [
        "0x1.262e39ffeb617p-1",
        "0x1.71524196202fap-2",
        "0x1.43f5ef9d9fcc5p-1",
    ]
    assert [int(p) for p in Purpose] == [0, 1, 2, 3]


def test_gumbel_is_the_written_function_of_the_bits():
    r = bits(3, 4, 4096).astype(np.uint64)
    u = (2 * (r >> np.uint64(9)) + np.uint64(1)).astype(np.float64) * 2.0**-24
    exact = -np.log(-np.log(u))
    np.testing.assert_allclose(gumbel(3, 4, 4096), exact, rtol=0, atol=2e-6)


def test_extreme_bits_stay_finite(monkeypatch):
    """A 32-bit integer turned into float32 can round to u = 1 and give infinite noise."""
    extremes = [0, 0x1FF, 0x200, 0x7FFFFFFF, 0x80000000, 0xFFFFFDFF, 0xFFFFFE00, 0xFFFFFFFF]
    monkeypatch.setattr(reference, "bits", lambda *_: np.array(extremes, np.uint32))
    values = gumbel(0, 0, 8)
    u = np.array([2 * (r >> 9) + 1 for r in extremes]) * 2.0**-24
    assert u.min() > 0
    assert u.max() < 1
    np.testing.assert_allclose(values, -np.log(-np.log(u)), rtol=3e-7, atol=3e-7)
    assert values.min() > -2.82
    assert values.max() < 16.64


@settings(max_examples=30)
@given(seed=seeds, position=positions, sizes=st.tuples(st.integers(1, 700), st.integers(1, 700)))
def test_noise_of_an_id_does_not_depend_on_the_vocabulary(seed, position, sizes):
    short, long = sorted(sizes)
    assert gumbel(seed, position, short).tobytes() == gumbel(seed, position, long)[:short].tobytes()


def test_prefix_property_holds_at_full_size():
    """Vector loops treat the end of an array apart; its values must not differ there."""
    full = gumbel(1, 2, 49152)
    for size in (49151, 49139, 40001, 8193):
        assert gumbel(1, 2, size).tobytes() == full[:size].tobytes()


# --- its quality over (seed, position, id) ---


@pytest.fixture(scope="module")
def cube() -> np.ndarray:
    """32-bit values [seed, position, id]: 10 seeds, 80 positions, 1,024 ids."""
    return np.array([[bits(seed, n, 1024) for n in range(80)] for seed in SEEDS])


@pytest.mark.stat
def test_every_bit_is_balanced(cube):
    for bit in range(32):
        ones = int((cube >> np.uint32(bit) & np.uint32(1)).sum())
        assert abs(ones - cube.size / 2) < Z_LIMIT * math.sqrt(cube.size / 4), f"bit {bit}"


@pytest.mark.stat
@pytest.mark.parametrize("axis", [None, 0, 1, 2], ids=["all", "seed", "position", "id"])
def test_values_are_uniform_overall_and_along_each_axis(cube, axis):
    """Along an axis: a bad seed, position or id would be uneven by itself."""
    top = (cube >> np.uint32(26)).astype(np.int64)  # 64 bins
    slices = [top] if axis is None else list(np.moveaxis(top, axis, 0))[:: 1 if axis < 2 else 64]
    for part in slices:
        assert chi_square(np.bincount(part.ravel(), minlength=64)) < chi_square_limit(63)


@pytest.mark.stat
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seed", "position", "id"])
@pytest.mark.parametrize("lag", [1, 2, 8])
def test_neighbours_are_independent(cube, axis, lag):
    """Adjacent ids share a Philox block; adjacent positions and seeds differ in one bit."""
    nibble = np.moveaxis(cube >> np.uint32(28), axis, 0).astype(np.int64)
    pairs = nibble[:-lag] * 16 + nibble[lag:]
    assert chi_square(np.bincount(pairs.ravel(), minlength=256)) < chi_square_limit(255)


@pytest.mark.stat
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seed", "position", "id"])
def test_gumbel_of_neighbours_is_uncorrelated_and_standard(axis):
    values = np.array([[gumbel(s, n, 512) for n in range(40)] for s in SEEDS]).astype(np.float64)
    euler, variance = 0.5772156649015329, math.pi**2 / 6
    scaled = (np.moveaxis(values, axis, 0) - euler) / math.sqrt(variance)
    assert abs(scaled.mean()) * math.sqrt(values.size) < Z_LIMIT
    # The kurtosis of a Gumbel variable is 5.4, so its squares have variance 4.4.
    assert abs((scaled**2).mean() - 1) * math.sqrt(values.size / 4.4) < Z_LIMIT
    products = scaled[:-1] * scaled[1:]
    assert abs(products.mean()) * math.sqrt(products.size) < Z_LIMIT


@pytest.mark.stat
def test_uniforms_of_different_purposes_are_independent():
    """Acceptance and residual draws of one position must not know of each other."""
    draws = np.array(
        [[uniform(5, n, purpose) for purpose in list(Purpose)[1:]] for n in range(4000)]
    )
    for first, second in ((0, 1), (0, 2), (1, 2)):
        pairs = (draws[:, first] * 8).astype(int) * 8 + (draws[:, second] * 8).astype(int)
        assert chi_square(np.bincount(pairs, minlength=64)) < chi_square_limit(63)
