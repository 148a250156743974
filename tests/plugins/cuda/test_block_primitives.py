"""Everything that a block context and its row reader give, against numpy, on many grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.cuda.host import HostKernel
from tests.helpers.probe_kernel import ARGS, PARTIAL_ROW, SOURCE, launch


@pytest.fixture(scope="module")
def probe(load_host) -> HostKernel:
    return load_host(SOURCE, ARGS)


THREADS = st.sampled_from([1, 2, 8, 31, 32, 33, 40])


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
@given(num_threads=THREADS, num_blocks=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_reductions_of_integers(probe, dtype: str, num_threads, num_blocks, seed) -> None:
    rng = np.random.default_rng(seed)
    low = -100 if dtype == "int32" else 0
    values = rng.integers(low, 100, (num_blocks, num_threads)).astype(dtype)
    out = np.zeros((num_blocks, num_threads, 6), dtype)
    name = {"int32": "i32", "uint64": "u64"}[dtype]
    grid = num_threads, num_blocks, 2
    launch(probe, f"probe_reductions_{name}", grid, **{"in": values}, out=out)
    for block, numbers in enumerate(values):
        whole = [numbers.sum(), numbers.max(), numbers.min(), (numbers > 0).any()]
        before = np.cumsum(numbers) - numbers
        for thread in range(num_threads):
            assert out[block, thread].tolist() == [*whole, before[thread], numbers.sum()]


def tree(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.float32:
    """The documented order of a block's sum: trees of 32, then the partial sums in a tree."""
    lanes = np.zeros(32 * 32, np.float32)
    lanes[: len(values)] = values
    for groups in (lanes.reshape(32, 32), None):
        level = groups if groups is not None else lanes[None, :32]
        half = level.copy()
        while half.shape[1] > 1:
            middle = half.shape[1] // 2
            half = half[:, :middle] + half[:, middle:]
        lanes = half[:, 0]
    return lanes[0]


@given(num_threads=THREADS, seed=st.integers(0, 2**32))
def test_a_float_sum_has_the_documented_order(probe, num_threads: int, seed: int) -> None:
    """The device folds in that order too, so both round alike."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(num_threads).astype(np.float32)
    out = np.zeros((num_threads, 6), np.float32)
    launch(probe, "probe_reductions_f32", (num_threads, 1, 1), **{"in": values}, out=out)
    assert (out[:, 0] == tree(values)).all()
    assert (out[:, 1] == values.max()).all()
    assert (out[:, 2] == values.min()).all()
    assert np.allclose(out[:, 5], values.sum(dtype=np.float64), atol=1e-4)
    assert np.allclose(out[:, 4], np.cumsum(values) - values, atol=1e-4)


def as_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Bits of bfloat16; values that it holds exactly."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


KINDS = {
    "f32": lambda values: values.astype(np.float32),
    "f16": lambda values: values.astype(np.float16),
    "bf16": as_bfloat16,
}


@pytest.mark.parametrize("kind", KINDS)
@given(
    num_threads=st.sampled_from([1, 3, 8, 32]),
    blocks_per_row=st.integers(1, 5),
    count=st.integers(1, 300),
    shift=st.integers(0, 15),
    seed=st.integers(0, 2**32),
)
def test_a_row_over_several_blocks(
    probe, kind: str, num_threads, blocks_per_row, count, shift, seed
) -> None:
    """Every number is read once wherever a row starts, of equal ones the lowest id wins, and the
    tickets are ready for the next launch."""
    rng = np.random.default_rng(seed)
    num_rows = 3
    numbers = rng.integers(-20, 20, (num_rows, count))
    typed = KINDS[kind](numbers)
    room = np.zeros(shift + typed.size, typed.dtype)
    room[shift:] = typed.reshape(-1)  # rows start at any multiple of the element's size
    out = np.zeros(num_rows, PARTIAL_ROW)
    workspace = np.zeros(num_rows * blocks_per_row, PARTIAL_ROW)
    tickets = np.zeros(num_rows, np.uint32)
    for num_concurrent in (1, 4):
        out[:] = 0
        launch(
            probe,
            f"probe_row_best_{kind}",
            (num_threads, num_rows * blocks_per_row, num_concurrent),
            **{"in": room[shift:]},
            out=out,
            workspace=workspace,
            tickets=tickets,
            count=count,
            blocks_per_row=blocks_per_row,
        )
        assert out["id"].tolist() == numbers.argmax(1).tolist()
        assert out["score"].tolist() == numbers.max(1).tolist()
        assert out["num_visited"].tolist() == [count] * num_rows
        assert out["sum"].tolist() == numbers.sum(1).tolist()
        assert not tickets.any()


@given(num_threads=THREADS, num_blocks=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_atomics_lose_nothing(probe, num_threads: int, num_blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, rng.integers(1, 17), 500).astype(np.uint32)
    counts, bits = np.zeros(16, np.uint32), np.zeros(1, np.uint32)
    grid = num_threads, num_blocks, num_blocks
    launch(probe, "probe_histogram", grid, **{"in": values}, out=counts, workspace=bits, count=500)
    assert counts.tolist() == np.bincount(values, minlength=16).tolist()
    assert bits[0] == np.bitwise_or.reduce(values)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_every_half_is_widened_exactly(probe, kind: str) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    out = np.zeros(65536, np.float32)
    launch(probe, f"probe_widen_{kind}", (8, 1, 1), **{"in": bits}, out=out, count=65536)
    wide = bits.astype(np.uint32) << 16
    expected = wide.view(np.float32) if kind == "bf16" else bits.view(np.float16).astype(np.float32)
    is_nan = np.isnan(expected)
    assert (np.isnan(out) == is_nan).all()
    assert (out.view(np.uint32) == expected.view(np.uint32))[~is_nan].all()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_order_keys_order_as_floats_do(probe, numbers: list[float]) -> None:
    """Zeros of both signs included: -0 lies just below +0."""
    values = np.float32([*numbers, 0.0, -0.0, np.inf, -np.inf])
    keys, again = np.zeros(len(values), np.uint32), np.zeros_like(values)
    count = len(values)
    fields = {"in": values, "out": keys, "workspace": again, "count": count}
    launch(probe, "probe_order", (2, 1, 1), **fields)
    assert (again.view(np.uint32) == values.view(np.uint32)).all()
    below = values[:, None] < values[None, :]
    assert (below <= (keys[:, None] < keys[None, :])).all()
    zero, minus_zero = keys[len(numbers)], keys[len(numbers) + 1]
    assert minus_zero + 1 == zero


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1, max_size=20))
def test_the_upper_half_of_a_product(probe, pairs: list[tuple[int, int]]) -> None:
    out = np.zeros(len(pairs), np.uint64)
    words = np.array(pairs, np.uint64)
    launch(probe, "probe_products", (3, 1, 1), **{"in": words}, out=out, count=len(pairs))
    assert out.tolist() == [a * b >> 64 for a, b in pairs]
