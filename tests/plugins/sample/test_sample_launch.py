"""The kernels of the layer ssd::Sample: what its enqueue launches, on threads of this machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.tensors import DType
from plugins.law.kernel import MAX_SLICE, slices_of
from plugins.layer import DeviceTensor
from plugins.sample import launch
from plugins.sample.kernel import KERNEL
from plugins.sample.reference import sample
from tests.helpers.sampling_cases import as_float32, random_logits

STREAM = 77


class OnHost:
    """A loaded kernel that takes addresses, as a GPU's does, and runs blocks of few threads."""

    def __init__(self, kernel, num_threads: int) -> None:
        self._kernel = kernel
        self._num_threads = num_threads

    def launch(self, entry, values, *, num_blocks, num_threads, stream) -> None:
        assert stream == STREAM
        assert num_threads % 32 == 0
        assert all(isinstance(each, int | None) for each in values.values())
        self._kernel.launch(entry, values, num_blocks=num_blocks, num_threads=self._num_threads)


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(KERNEL.source, KERNEL.args)


def enqueue(compiled, logits: np.ndarray, ids_map: np.ndarray, num_threads: int = 1) -> np.ndarray:
    found = np.full(logits.shape[:2], -9, np.int64)
    scratch = np.full(launch.scratch_bytes([logits.shape, ids_map.shape]), 0xA5, np.uint8)
    dtype = DType.BFLOAT16 if logits.dtype == np.uint16 else DType(logits.dtype.name)
    launch.enqueue(
        OnHost(compiled, num_threads),
        [
            DeviceTensor(logits.ctypes.data, dtype, logits.shape),
            DeviceTensor(ids_map.ctypes.data, DType.INT64, ids_map.shape),
        ],
        [DeviceTensor(found.ctypes.data, DType.INT64, found.shape)],
        STREAM,
        scratch.ctypes.data,
    )
    return found


def test_the_layer_is_the_reference_in_1000_cases(compiled) -> None:
    for index in range(1000):
        rng = np.random.default_rng([index, 5])
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.choice([1, 5, 8, 77])))
        if index % 50 == 0:
            shape = (1, 1, 9000)
        logits = random_logits(rng, shape, str(rng.choice(["float32", "float16", "uint16"])))
        ids_map = rng.permutation(2 * shape[-1])[: shape[-1]]
        found = enqueue(compiled, logits, ids_map, num_threads=4 if index % 10 == 0 else 1)
        (expected,) = sample(as_float32(logits), ids_map)
        np.testing.assert_array_equal(found, expected, f"case {index}")


def test_a_row_without_a_finite_logit_names_its_first_id(compiled) -> None:
    logits = np.full((1, 2, 5000), -np.inf, np.float32)
    assert enqueue(compiled, logits, np.arange(7, 5007)).tolist() == [[7, 7]]


@given(
    st.tuples(st.integers(1, 64), st.integers(1, 17), st.integers(1, 300_000)),
    st.tuples(st.integers(1, 64), st.integers(1, 17), st.integers(1, 300_000)),
)
def test_memory_for_the_largest_shapes_does_for_smaller_ones(one, other) -> None:
    """The engine asks once, with the largest shapes of a profile."""
    largest = tuple(map(max, one, other))
    batch, rows, vocab_size = one
    needed = batch * rows * slices_of(batch * rows, vocab_size) * 8
    assert launch.scratch_bytes([largest, largest[2:]]) >= needed
    assert vocab_size / slices_of(batch * rows, vocab_size) <= MAX_SLICE
