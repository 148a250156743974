"""Weights as codes with scales: how far from the weights they are, and never infinite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.graph.precision import Coding
from export.graph.quantize import quantize, quantize_with_offsets


@pytest.mark.parametrize("largest", [7, 127])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.filterwarnings("error")
def test_no_code_is_infinite_when_it_is_multiplied_out(largest: int, dtype: type) -> None:
    """65504 / 127 rounds up to 516, and 127 times that is beyond float16."""
    most = np.finfo(dtype).max
    weight = np.array([[most], [-most]], np.float32)
    codes, scales = quantize(weight, 2, largest, np.dtype(dtype))
    assert codes.ravel().tolist() == [largest, -largest]
    assert np.isfinite(scales[0] * dtype(largest)).all()


@pytest.mark.parametrize("scale_type", [np.float16, np.float32])
@pytest.mark.parametrize("largest", [127, 7])
def test_quantisation_error_is_at_most_half_a_step(largest, scale_type):
    weight = np.random.default_rng(0).normal(size=(128, 24)).astype(np.float32)
    weight[:64, 3] = 0
    codes, scales = quantize(weight, 64, largest, np.dtype(scale_type))
    step = scales[:, None].astype(np.float32)
    error = np.abs(codes.reshape(2, 64, 24) * step - weight.reshape(2, 64, 24))
    # The scale is rounded to its type, which moves the largest weight of a block.
    assert (error <= step * (0.5001 + largest * np.finfo(scale_type).eps)).all()
    assert np.abs(codes).max() == largest
    assert scales.dtype == scale_type


@pytest.mark.filterwarnings("error")
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-36, 38), shift=st.floats(-2, 2))
def test_codes_with_offsets_are_a_step_away_at_most(seed, exponent, shift):
    """Half a step by rounding, and half where the rounded offset moves an end out of range.
    Below 1e-36 a step is subnormal, and float32 rounds it by more than a thousandth."""
    random = np.random.default_rng(seed)
    weight = (random.uniform(-1, 1, (64, 3)) + shift) / 3 * 10.0**exponent
    weight = weight.astype(np.float32)
    weight[:32, 1] = 0
    codes, scales, offsets = quantize_with_offsets(weight, 32, 4, np.dtype(np.float32))
    assert codes.dtype == offsets.dtype == np.uint8
    assert max(codes.max(), offsets.max()) <= 15
    assert (scales > 0).all()
    assert np.isfinite(scales).all()
    step = scales.astype(np.float64)[:, None]
    values = (codes.reshape(2, 32, 3) - offsets.astype(np.float64)[:, None]) * step
    assert (np.abs(values - weight.reshape(2, 32, 3)) <= 1.001 * step).all()
    assert not values[0, :, 1].any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exponent", range(-45, -36))
def test_subnormal_weights_have_scales_and_codes(exponent: int) -> None:
    weight = np.random.default_rng(0).uniform(-1, 1, (64, 3)) * 10.0**exponent
    codes, scales, _ = quantize_with_offsets(weight.astype(np.float32), 32, 4, np.dtype(np.float32))
    assert codes.max() <= 15
    assert (scales > 0).all()
    assert np.isfinite(scales).all()


def test_a_lopsided_block_has_finer_steps_than_symmetric_codes_give_it():
    weight = np.random.default_rng(0).uniform(-0.1, 1, (32, 8)).astype(np.float32)
    codes, scales, offsets = quantize_with_offsets(weight, 32, 4, np.dtype(np.float32))
    symmetric, coarse = quantize(weight, 32, 7, np.dtype(np.float32))
    error = np.abs((codes.astype(np.float32) - offsets) * scales - weight).mean()
    assert error < 0.7 * np.abs(symmetric * coarse - weight).mean()


def test_no_scale_is_zero():
    """TensorRT refuses a scale of 0; float16 rounds the scale of tiny weights to it."""
    weight = np.full((64, 2), 1e-9, np.float32)
    weight[:, 1] = 0
    codes, scales = quantize(weight, 64, 127, np.dtype(np.float16))
    assert (scales > 0).all()
    assert not codes.any()


def test_codes_are_symmetric():
    assert (Coding(8).largest, Coding(4).largest) == (127, 7)
