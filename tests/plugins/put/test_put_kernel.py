"""Putting bytes: the kernel has the reference's meaning, by offsets and by addresses."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import UsageError
from plugins.put import kernel
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


def test_the_kernel_is_the_reference_in_1000_cases(compiled) -> None:
    """Also for segments of no bytes, no segments, and as many as a launch can carry."""
    for index in range(NUM_CASES):
        rng = generator(index)
        case = kernel.random_case(rng, int(rng.integers(0, kernel.MAX_SEGMENTS + 1)), 90)
        assert errors_of(compiled, kernel.ENTRY, case, grid_of(index)) == [], f"case {index}"


def test_without_a_base_an_offset_is_an_address(compiled) -> None:
    """Segments go to several arrays, and what lies beside them stays."""
    numbers, flags = np.arange(4), np.zeros(3, bool)
    segments = [
        (numbers[1:].ctypes.data, np.array([70, 80]).view(np.uint8)),
        (flags[2:].ctypes.data, np.array([True]).view(np.uint8)),
    ]
    compiled.launch(kernel.ENTRY, kernel.values(segments), num_blocks=1, num_threads=1)
    assert numbers.tolist() == [0, 70, 80, 3]
    assert flags.tolist() == [False, False, True]


def test_more_than_a_launch_can_carry_is_refused() -> None:
    byte = np.zeros(1, np.uint8)
    with pytest.raises(UsageError, match="at most 32 segments"):
        kernel.values([(0, byte)] * 33)
    with pytest.raises(UsageError, match="3073"):
        kernel.values([(0, np.zeros(3073, np.uint8))])


def test_the_struct_fits_into_a_launch() -> None:
    """CUDA takes 4 KiB of arguments."""
    import ctypes

    assert ctypes.sizeof(kernel.ARGS.struct) <= 4096
