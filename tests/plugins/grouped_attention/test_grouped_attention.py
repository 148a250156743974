"""ssd::GroupedAttention: its forms agree, and a row's result is that row's alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from plugins.grouped_attention import onnx as form
from plugins.grouped_attention.reference import grouped_attention
from tests.helpers.node_model import node_model, open_model

HIDDEN = np.finfo(np.float32).min


def model_of(heads: int, groups: int, size: int, scale: float) -> bytes:
    shapes = form.shapes(heads, groups, size)
    attributes = ", ".join(f"{name} = {shape}" for name, shape in shapes.items())
    return node_model(
        form.function_text(),
        f"context = {form.DOMAIN}.{form.OP_NAME} <{form.SCALE} = {scale}, {attributes}>"
        "(queries, keys, values, bias)",
        f"(float[B, {heads}, T, {size}] queries, float[B, {groups}, L, {size}] keys, "
        f"float[B, {groups}, L, {size}] values, float[B, 1, R, L] bias) "
        f"=> (float[B, T, {heads * size}] context)",
    )


@cache
def running(heads: int, groups: int, size: int, scale: float, threads: int, *, kernels: bool):
    return open_model(model_of(heads, groups, size, scale), kernels=kernels, threads=threads)


def case(batch, heads, groups, tokens, rows, size, seed=0):
    """Random tensors; a token sees itself and about half of what is before it."""
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((batch, heads, tokens, size)).astype(np.float32)
    keys, values = rng.standard_normal((2, batch, groups, rows, size)).astype(np.float32)
    seen = rng.random((batch, 1, tokens, rows)) < 0.5
    last = rng.integers(0, rows, (batch, 1, tokens, 1))
    seen &= np.arange(rows) <= last
    np.put_along_axis(seen, last, True, axis=3)
    return queries, keys, values, np.where(seen, np.float32(0), HIDDEN)


def attend(session, queries, keys, values, bias):
    copies = queries.shape[1] // keys.shape[1]
    feed = {"queries": queries, "keys": keys, "values": values}
    return session.run(None, feed | {"bias": np.concatenate([bias] * copies, axis=2)})[0]


def expected(queries, keys, values, bias, scale):
    copies = queries.shape[1] // keys.shape[1]
    bias = np.concatenate([bias] * copies, axis=2)
    return grouped_attention(queries, keys, values, bias, scale=scale)


def test_the_reference_by_hand():
    queries = np.array([[[[1.0]], [[-1.0]]]], np.float32)
    keys = np.array([[[[2.0], [2.0], [9.0]]]], np.float32)
    values = np.array([[[[1.0], [3.0], [50.0]]]], np.float32)
    bias = np.array([[[[0, 0, HIDDEN], [0, 0, HIDDEN]]]], np.float32)
    found = grouped_attention(queries, keys, values, bias, scale=0.5)
    assert found.tolist() == [[[2.0, 2.0]]]


def test_shapes_that_do_not_fit_are_refused():
    queries, keys, values, bias = case(1, 4, 2, 3, 8, 16)
    for wrong in (
        (queries[:, :3], keys, values, bias),
        (queries, keys[:, :, 1:], values, bias),
        (queries, keys, values, bias),  # not repeated for the heads of a group
        (queries[..., 1:], keys, values, np.concatenate([bias] * 2, axis=2)),
    ):
        with pytest.raises(UsageError, match="do not fit"):
            grouped_attention(*wrong, scale=1.0)


SHAPES = [
    *((2, 1, 16), (3, 3, 32), (6, 2, 48), (9, 3, 64), (4, 2, 80), (8, 2, 128)),
    *((4, 2, 6), (4, 2, 8), (2, 1, 24), (6, 2, 70)),
]


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.vnni)])
@pytest.mark.parametrize(("heads", "groups", "size"), SHAPES)
def test_both_forms_are_the_reference(heads, groups, size, kernels):
    scale = size**-0.5
    for tokens, rows in ((1, 1), (1, 40), (3, 16), (5, 65), (17, 130)):
        tensors = case(2, heads, groups, tokens, rows, size)
        found = attend(running(heads, groups, size, scale, 2, kernels=kernels), *tensors)
        np.testing.assert_allclose(found, expected(*tensors, scale), rtol=2e-5, atol=2e-6)


@pytest.mark.vnni
@given(
    shape=st.sampled_from(SHAPES),
    tokens=st.integers(1, 20),
    rows=st.integers(1, 100),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_kernel_is_the_reference_for_scores_of_any_size(shape, tokens, rows, size, seed):
    heads, groups, width = shape
    queries, keys, values, bias = case(1, heads, groups, tokens, rows, width, seed)
    queries = queries * np.float32(size)
    found = attend(running(*shape, 0.25, 1, kernels=True), queries, keys, values, bias)
    # A score of some hundreds is off by a unit in its last place, which is a share of a weight.
    exact = expected(queries, keys, values, bias, 0.25)
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=2e-5 * max(size, 1))


@pytest.mark.vnni
@given(
    shape=st.sampled_from(SHAPES),
    batch=st.integers(1, 3),
    tokens=st.integers(1, 20),
    rows=st.integers(1, 100),
    more=st.integers(0, 50),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_a_row_sees_nothing_but_its_own(shape, batch, tokens, rows, more, seed, data):
    """Not its neighbours, nor how long the cache is, nor what numbers lie where it may not look."""
    heads, groups, size = shape
    queries, keys, values, bias = case(batch, heads, groups, tokens, rows, size, seed)
    together = attend(running(*shape, 0.125, 2, kernels=True), queries, keys, values, bias)
    text, token = data.draw(st.integers(0, batch - 1)), data.draw(st.integers(0, tokens - 1))
    rng = np.random.default_rng(seed + 1)
    longer = ((0, 0), (0, 0), (0, more), (0, 0))
    alone = bias[text : text + 1, :, token : token + 1]
    hidden = (alone[0, 0, 0] == HIDDEN)[:, None]
    others = [
        np.pad(np.where(hidden, rng.standard_normal(hidden.shape), each), longer)
        for each in (keys[text : text + 1], values[text : text + 1])
    ]
    found = attend(
        running(*shape, 0.125, 1, kernels=True),
        queries[text : text + 1, :, token : token + 1],
        *(each.astype(np.float32) for each in others),
        np.pad(alone, (*longer[:3], (0, more)), constant_values=HIDDEN)[:, :, :1],
    )
    np.testing.assert_array_equal(found[0, 0], together[text, token])


@pytest.mark.vnni
def test_the_kernel_takes_the_node(tmp_path):
    kinds = []
    for kernels in (False, True):
        path = tmp_path / f"optimised-{kernels}.onnx"
        open_model(model_of(9, 3, 64, 0.125), kernels=kernels, optimised=path)
        kinds.append({node.op_type for node in onnx.load(path).graph.node})
    assert kinds == [{"Reshape", "Attention", "Transpose"}, {"GroupedAttention"}]


@pytest.mark.vnni
def test_tensors_that_do_not_fit_are_an_error_with_a_reason():
    session = running(4, 2, 16, 1.0, 1, kernels=True)
    queries, keys, values, bias = case(1, 4, 2, 3, 8, 16)
    for wrong in (
        (queries, keys, values[:, :, 1:], bias),
        (queries, keys, values, bias[..., 1:]),
        (queries, keys, values, bias[:, :, :1]),
        (np.concatenate([queries] * 2), keys, values, bias),
    ):
        with pytest.raises(Exception, match=r"GroupedAttention: expected queries"):
            attend(session, *wrong)
    assert attend(session, queries, keys, values, bias).shape == (1, 3, 64)


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.vnni)])
@pytest.mark.parametrize("hidden", [[0], [1], [0, 1, 2]])
def test_a_row_that_sees_nothing_is_zeros(kernels, hidden):
    """No live row is one; a neighbour of it must not notice."""
    queries, keys, values, bias = case(1, 4, 2, 3, 40, 16)
    session = running(4, 2, 16, 1.0, 1, kernels=kernels)
    before = attend(session, queries, keys, values, bias)
    bias[0, 0, hidden] = HIDDEN
    after = attend(session, queries, keys, values, bias)
    others = [token for token in range(3) if token not in hidden]
    assert not after[0, hidden].any()
    np.testing.assert_array_equal(after[0, others], before[0, others])


@pytest.mark.vnni
def test_what_is_no_number_is_seen():
    """An engine that went wrong must not look well."""
    queries, keys, values, bias = case(1, 2, 1, 2, 20, 16)
    queries[0, 1, 1, 3] = np.nan
    found = attend(running(2, 1, 16, 1.0, 1, kernels=True), queries, keys, values, bias)
    assert np.isnan(found[0, 1, 16:]).all()
    assert np.isfinite(found[0, 0]).all()
    assert np.isfinite(found[0, 1, :16]).all()
