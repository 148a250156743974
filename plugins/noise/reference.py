"""The noise of a token: a pure function of (seed, position, id), the same for every mode.

This text is the specification. The numpy code below and `noise.cuh` follow it bit for bit up to
the logarithm.

**Generator.** Philox4x64-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
as 1, 2, 3", 2011), as `numpy.random.Philox`. It turns a counter (c0, c1, c2, c3) and a key
(k0, k1), all unsigned 64-bit words, into four such words. Ten rounds, each

    hi0:lo0 = 0xD2E7470EE14C6C93 * c0          hi1:lo1 = 0xCA5A826395121157 * c2
    (c0, c1, c2, c3) = (hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0)

with, between two rounds, k0 += 0x9E3779B97F4A7C15 and k1 += 0xBB67AE8584CAA73B (mod 2**64).

**Key and counter.** key = (seed, purpose); counter = (1 + block, position, 0, 0). The 1 is
numpy's habit of counting up before its first block. `purpose` keeps independent uses of one
seed apart: see `Purpose`.

**Gumbel noise** (purpose TOKEN). A block yields words w0..w3 and serves eight ids: id i takes
block i // 8, word (i % 8) // 2, its low half when i is even and its high half when i is odd.
From that 32-bit r

    u = (2 * (r >> 9) + 1) * 2**-24            odd 24-bit integers: exact in float32, never 0 or 1
    g = -log(-log(u))                          each step rounded to float32, g in [-2.82, 16.64]

A 32-bit integer turned into float32 could round to u = 1 and give g = inf. The price of 24
bits: ids less likely than about 2**-26 come up more seldom than they should.

**One uniform** (any other purpose). From w0 of block 0

    u = (2 * (w0 >> 12) + 1) * 2**-53          odd 53-bit integers: exact in float64, never 0 or 1

**After the bits.** Libraries round log differently in the last place, so g may differ in that
place between machines (not within one), and with it the token of a seed, where the two best
scores lie within about 1e-6. Two sides that must agree use one implementation.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

IDS_PER_BLOCK = 8
WORDS_PER_BLOCK = 4


class Purpose(IntEnum):
    """Second word of the key. The numbers are part of the specification."""

    TOKEN = 0
    """Gumbel noise that chooses the token of a position (coupled rule)."""
    DRAFT = 1
    """The uniform that draws a drafted token from the draft's law (ratio rule)."""
    ACCEPT = 2
    """The uniform that decides whether a drafted token is accepted (ratio rule)."""
    RESIDUAL = 3
    """The uniform that draws the bonus token (ratio rule)."""


def bits(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.uint32]:
    """The 32-bit value r of every id, uint32 [V]; what another implementation must equal."""
    num_words = -(-vocab_size // IDS_PER_BLOCK) * WORDS_PER_BLOCK
    words = _philox(seed, position, Purpose.TOKEN).random_raw(num_words)
    return words.astype("<u8", copy=False).view("<u4")[:vocab_size]


def gumbel(seed: int, position: int, vocab_size: int) -> FloatArray:
    """Standard Gumbel noise of every id at one position, float32 [V].

    The value of an id does not depend on `vocab_size`: a shorter vector is a prefix of a
    longer one, so a padded or reduced vocabulary sees the same noise for the same id.
    """
    odd = bits(seed, position, vocab_size)
    odd >>= 8
    odd |= 1  # = 2 * (r >> 9) + 1
    # Below 2**24 the signed view is the same number, and converts much faster.
    values = odd.view(np.int32).astype(np.float32)
    values *= np.float32(2.0**-24)
    for _ in range(2):
        np.log(values, out=values)
        np.negative(values, out=values)
    return values


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """One uniform in (0, 1) for a purpose other than TOKEN, exact in float64."""
    word = int(_philox(seed, position, purpose).random_raw())
    return (2 * (word >> 12) + 1) * 2.0**-53


def _philox(seed: int, position: int, purpose: Purpose) -> np.random.Philox:
    return np.random.Philox(
        counter=np.array([0, position, 0, 0], dtype=np.uint64),
        key=np.array([seed, purpose], dtype=np.uint64),
    )
