"""ssd::CodedProduct: its forms agree, and a row's result is that row's alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from plugins.coded_product import onnx as form
from plugins.coded_product.reference import SMALLEST, coded_product, rounded_rows
from tests.helpers.node_model import node_model, open_model


def model_of(codes: np.ndarray, scales: np.ndarray, block: int, *, constant: bool = True) -> bytes:
    """One node, x [T, K] -> y [T, N], its matrix an initializer or else an input."""
    inputs, outputs = codes.shape
    matrix = f"int8[{inputs}, {outputs}] codes, float[{len(scales)}, {outputs}] scales"
    return node_model(
        form.function_text(),
        f"y = {form.DOMAIN}.{form.OP_NAME} <{form.BLOCK} = {block}> (x, codes, scales)",
        f"(float[B, T, K] x{'' if constant else f', {matrix}'}) => (float[B, T, {outputs}] y)",
        {"codes": codes, "scales": scales} if constant else {},
    )


def with_kernel(model: bytes, threads: int = 1):
    return open_model(model, kernels=True, threads=threads)


def product(running, x: np.ndarray) -> np.ndarray:
    return running.run(None, {"x": x[None]})[0][0]


@cache
def matrix(inputs: int, outputs: int, block: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (inputs, outputs), np.int8)
    scales = rng.uniform(1e-4, 2e-2, (inputs // block, outputs)).astype(np.float32)
    return codes, scales


def rows(count: int, inputs: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, inputs)).astype(np.float32)


def test_the_reference_is_the_product_up_to_the_rounding_of_rows():
    codes, scales = matrix(128, 40, 32)
    x = rows(5, 128)
    exact = x.astype(np.float64) @ (codes * np.repeat(scales.astype(np.float64), 32, axis=0))
    error = np.abs(coded_product(x, codes, scales) - exact).max()
    assert 0 < error < 0.01 * np.abs(exact).max()


def test_rows_that_are_codes_lose_nothing():
    codes, scales = matrix(64, 8, 32)
    x = np.random.default_rng(2).integers(-127, 128, (3, 64)).astype(np.float32)
    x[:, ::32] = 127
    exact = x.astype(np.float64) @ (codes * np.repeat(scales.astype(np.float64), 32, axis=0))
    np.testing.assert_allclose(coded_product(x, codes, scales), exact, rtol=1e-5, atol=1e-3)


def test_rounding_of_rows_by_hand():
    codes, scales = rounded_rows(np.array([[0, 0, 1, -4], [1e-31, 0, 2, np.inf]], np.float32), 2)
    assert codes.tolist() == [[0, 0, 32, -127], [0, 0, 0, 0]]
    expected = [[0, np.float32(4) / np.float32(127)], [0, np.nan]]
    np.testing.assert_array_equal(scales, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("x", "codes", "scales"),
    [((2, 63), (64, 8), (2, 8)), ((2, 64), (64, 8), (2, 7)), ((2, 64), (64, 8), (3, 8))],
)
def test_shapes_that_do_not_fit_are_refused(x, codes, scales):
    with pytest.raises(UsageError, match="do not fit"):
        coded_product(
            np.zeros(x, np.float32), np.zeros(codes, np.int8), np.ones(scales, np.float32)
        )


def test_the_function_is_the_reference_up_to_another_rounding():
    codes, scales = matrix(128, 40, 32)
    x = rows(5, 128)
    found = product(open_model(model_of(codes, scales, 32), kernels=False), x)
    np.testing.assert_allclose(found, coded_product(x, codes, scales), atol=0.05)


@cache
def shared_session(inputs: int, outputs: int, block: int, threads: int):
    codes, scales = matrix(inputs, outputs, block)
    return with_kernel(model_of(codes, scales, block), threads)


SHAPES = [(64, 1, 64), (64, 31, 32), (128, 32, 16), (192, 33, 64), (96, 100, 96), (256, 65, 32)]


@pytest.mark.vnni
@given(
    shape=st.sampled_from(SHAPES),
    threads=st.sampled_from([1, 2]),
    num_rows=st.integers(0, 20),
    seed=st.integers(0, 2**32 - 1),
    wild=st.lists(
        st.sampled_from([0.0, -0.0, 1e-31, float(SMALLEST), 1e-40, 3e38, -3e38, np.inf, np.nan]),
        max_size=6,
    ),
)
def test_the_kernel_gives_the_references_bits(shape, threads, num_rows, seed, wild):
    inputs, _outputs, block = shape
    codes, scales = matrix(*shape)
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((num_rows, inputs)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    if num_rows:
        for value in wild:
            x[rng.integers(num_rows), rng.integers(inputs)] = value
        x[rng.integers(num_rows), : block * int(rng.integers(2))] = 0
    found = product(shared_session(*shape, threads), x)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = coded_product(x, codes, scales)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.vnni
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 6, 7, 12, 40])
def test_a_row_does_not_see_the_others(num_rows):
    codes, scales = matrix(576, 960, 64)
    model = model_of(codes, scales, 64)
    x = rows(num_rows, 576)
    together = product(with_kernel(model, threads=2), x)
    alone = with_kernel(model)
    for row in range(num_rows):
        np.testing.assert_array_equal(product(alone, x[row : row + 1])[0], together[row])


@pytest.mark.vnni
def test_the_smallest_and_largest_sums_are_whole():
    """A block of 1,024 products of 127 by 127 is the largest that float32 holds."""
    codes = np.full((1024, 2), 127, np.int8)
    codes[:, 1] = -127
    scales = np.ones((1, 2), np.float32)
    x = np.full((1, 1024), 127, np.float32)
    found = product(with_kernel(model_of(codes, scales, 1024)), x)
    np.testing.assert_array_equal(found, [[127 * 127 * 1024, -127 * 127 * 1024]])


@pytest.mark.vnni
def test_the_kernel_takes_the_node(tmp_path):
    """Without it the function is inlined, and fused to ONNX Runtime's own kernel."""
    kinds = []
    for kernels in (False, True):
        path = tmp_path / f"optimised-{kernels}.onnx"
        open_model(model_of(*matrix(64, 8, 32), 32), kernels=kernels, optimised=path)
        kinds.append([node.op_type for node in onnx.load(path).graph.node])
    assert kinds == [["MatMulNBits"], ["CodedProduct"]]


@pytest.mark.vnni
@pytest.mark.parametrize(
    ("block", "constant", "reason"),
    [(8, True, "multiple of 16"), (24, True, "multiple of 16"), (32, False, "initializers")],
)
def test_what_the_kernel_cannot_do_is_an_error_with_a_reason(block, constant, reason):
    model = model_of(*matrix(96, 8, block), block, constant=constant)
    with pytest.raises(Exception, match=reason):
        with_kernel(model)


@pytest.mark.vnni
def test_rows_of_another_width_are_refused():
    running = with_kernel(model_of(*matrix(64, 8, 32), 32))
    for width in (32, 96):
        with pytest.raises(Exception, match="another width"):
            product(running, np.zeros((1, width), np.float32))
    assert product(running, np.zeros((1, 64), np.float32)).tolist() == [[0.0] * 8]


@pytest.mark.vnni
def test_one_session_may_be_called_from_many_threads():
    codes, scales = matrix(192, 33, 64)
    running = with_kernel(model_of(codes, scales, 64), threads=2)
    batches = [rows(1 + i % 9, 192, seed=i) for i in range(200)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: product(running, x), batches))
    for x, y in zip(batches, found, strict=True):
        np.testing.assert_array_equal(y, coded_product(x, codes, scales))
