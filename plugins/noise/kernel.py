"""The noise written out by a kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.noise.reference import Purpose, bits, gumbel, uniform

ENTRY = "ssd_noise"
NUM_THREADS = 256
LEAST_GUMBEL, LARGEST_GUMBEL = -2.812, 16.636
"""All noise lies between: kernels skip ids that cannot win by it."""

SOURCE = Path(__file__).with_name("kernel.cu")
ARGS = Args(
    Array("seed", ("uint64",)),
    Array("position", ("int64",)),
    Array("bits", ("uint32",), is_output=True),
    Array("gumbel", ("float32",), is_output=True),
    Array("uniform", ("float64",), is_output=True),
    Number("vocab_size"),
)


def noise_case(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64], vocab_size: int
) -> Case:
    """The noise of N (seed, position): bits [N, V], gumbel [N, V], uniform [N, 4] by purpose."""
    keys = list(zip(seeds.tolist(), positions.tolist(), strict=True))
    expected = {
        "bits": np.array([bits(*key, vocab_size) for key in keys]),
        "gumbel": np.array([gumbel(*key, vocab_size) for key in keys]),
        "uniform": np.array([[uniform(*key, purpose) for purpose in Purpose] for key in keys]),
    }
    outputs = {name: np.zeros_like(array) for name, array in expected.items()}
    return Case(
        values={"seed": seeds, "position": positions, "vocab_size": vocab_size, **outputs},
        expected=expected,
        # The logarithms of two platforms.
        rtol=1e-6,
        atol=2e-6,
    )


def _trial(num_keys: int, vocab_size: int) -> Trial:
    def make(rng: np.random.Generator) -> Case:
        seeds = rng.integers(0, 2**64, num_keys, np.uint64)
        return noise_case(seeds, rng.integers(0, 2**40, num_keys), vocab_size)

    return Trial(
        label=f"N={num_keys} V={vocab_size}",
        entry=ENTRY,
        num_blocks=num_keys,
        num_threads=NUM_THREADS,
        num_bytes=num_keys * vocab_size * 8,
        make=make,
    )


KERNEL = Kernel("noise", SOURCE, ARGS, (ENTRY,), (_trial(4, 1000), _trial(132, 32768)))
