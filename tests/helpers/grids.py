"""Running a kernel's host form on many grids."""

from __future__ import annotations

import numpy as np

from plugins.cuda.host import HostKernel
from plugins.cuda.kernel import Case, host_values, wrong_outputs

NUM_CASES = 1000


def grid_of(index: int) -> tuple[int, int, int]:
    """Threads, blocks and concurrent blocks of the ``index``-th of many cases.

    1, 8 or 32 threads: a large block costs most of the time, so fewer cases get it.
    """
    num_threads = 32 if index % 20 == 0 else 8 if index % 4 == 0 else 1
    return num_threads, 1 + index % 7, 1 + index % 3


def errors_of(kernel: HostKernel, entry: str, case: Case, grid: tuple[int, int, int]) -> list[str]:
    """What a launch of ``case`` gets wrong."""
    num_threads, num_blocks, num_concurrent = grid
    values, arrays = host_values(case)
    kernel.launch(
        entry,
        values,
        num_blocks=num_blocks,
        num_threads=num_threads,
        num_concurrent=num_concurrent,
    )
    return wrong_outputs(case, arrays)


def generator(index: int) -> np.random.Generator:
    return np.random.default_rng([20261103, index])
