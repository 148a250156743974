"""The noise of the kernels: the specification's bits and uniforms, and its Gumbel noise nearly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.noise import kernel, reference
from plugins.noise.kernel import KERNEL, noise_case

EDGES = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(KERNEL.source, KERNEL.args)


def launch(compiled, seeds, positions, vocab_size, num_threads=1):
    case = noise_case(np.array(seeds, np.uint64), np.array(positions, np.int64), vocab_size)
    values = {name: np.copy(value) for name, value in case.values.items()}
    values["vocab_size"] = vocab_size
    compiled.launch(
        kernel.ENTRY, values, num_blocks=len(seeds), num_threads=num_threads, num_concurrent=2
    )
    return values, case.expected


@settings(max_examples=40)
@given(
    keys=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=4
    ),
    vocab_size=st.integers(1, 300),
    num_threads=st.sampled_from([1, 2, 5]),
)
def test_bits_and_uniforms_are_equal_for_random_keys(compiled, keys, vocab_size, num_threads):
    found, expected = launch(compiled, *zip(*keys, strict=True), vocab_size, num_threads)
    np.testing.assert_array_equal(found["bits"], expected["bits"])
    np.testing.assert_array_equal(found["uniform"], expected["uniform"])
    np.testing.assert_allclose(found["gumbel"], expected["gumbel"], rtol=0, atol=2e-6)


def test_bits_are_equal_at_the_edges_of_the_words_and_in_a_full_vocabulary(compiled):
    """A 32-bit word in the place of a 64-bit one shows in the upper halves only."""
    seeds, positions = zip(*product(EDGES, EDGES[:5]), strict=True)
    found, expected = launch(compiled, seeds, positions, 17)
    np.testing.assert_array_equal(found["bits"], expected["bits"])
    found, expected = launch(compiled, [11], [2**40], 262144)
    np.testing.assert_array_equal(found["bits"], expected["bits"])


def test_purposes_follow_the_specification(compiled):
    """Row by purpose: a shifted number would reuse a draw."""
    found, _ = launch(compiled, [5], [7], 8)
    for purpose in list(reference.Purpose)[1:]:
        assert found["uniform"][0, purpose] == reference.uniform(5, 7, purpose)


def test_all_noise_lies_within_the_bounds_that_the_kernels_skip_by():
    """An id beyond them would be skipped, and the token of that seed would be another one."""
    least, largest = (-np.log(-np.log(np.float32(u))) for u in (2.0**-24, 1 - 2.0**-24))
    assert kernel.LEAST_GUMBEL < least < largest < kernel.LARGEST_GUMBEL
    text = kernel.SOURCE.with_name("noise.cuh").read_text()
    assert f"kLeastGumbel = {kernel.LEAST_GUMBEL}f" in text
    assert f"kLargestGumbel = {kernel.LARGEST_GUMBEL}f" in text
