from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from engines.profiles import ShapeProfile, Span, shape_profiles
from engines.tensors import DType, TensorSpec
from export.tensorrt.profiles import profile_shapes

INPUTS = (
    TensorSpec("tokens", DType.INT64, ("B", "T")),
    TensorSpec("mask", DType.BOOL, ("B", 1, "T", "L")),
    TensorSpec("logit_rows", DType.INT64, ("B", "R")),
    TensorSpec("kv.0.key", DType.FLOAT16, ("B", 2, 176, 16)),
)


def changed(**spans: Span) -> ShapeProfile:
    usual = {"batch": Span(1, 1, 2), "tokens": Span(1, 2, 5), "logits": Span(1, 2, 5)}
    return ShapeProfile("verify", **{**usual, "length": Span(64, 64, 176), **spans})


def test_every_input_gets_three_shapes() -> None:
    assert profile_shapes(changed(), INPUTS) == {
        "tokens": ((1, 1), (1, 2), (2, 5)),
        "mask": ((1, 1, 1, 64), (1, 1, 2, 64), (2, 1, 5, 176)),
        "logit_rows": ((1, 1), (1, 2), (2, 5)),
        "kv.0.key": ((1, 2, 176, 16), (1, 2, 176, 16), (2, 2, 176, 16)),
    }


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (changed(length=Span(64, 64, 177)), "attends up to 177 rows, the cache kv.0.key has 176"),
        (changed(tokens=Span(1, 2, 177)), "writes up to 177 rows, the cache kv.0.key has 176"),
        (changed(logits=Span(1, 2, 6)), "asks for 6 logits of 5 tokens"),
    ],
)
def test_a_profile_outside_the_limits_is_refused_with_figures(
    profile: ShapeProfile, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        profile_shapes(profile, INPUTS)


def test_a_dimension_that_no_profile_bounds_is_refused() -> None:
    with pytest.raises(UsageError, match="no profile bounds the dimension Q"):
        profile_shapes(changed(), (TensorSpec("x", DType.INT64, ("B", "Q")),))


@given(
    role=st.sampled_from(["target", "draft"]),
    max_batch=st.integers(1, 8),
    num_draft=st.integers(0, 16),
    max_branches=st.integers(0, 64),
    rows=st.integers(64, 4096),
)
def test_the_profiles_of_any_limits_are_in_order_and_fit_the_cache(
    role: str, max_batch: int, num_draft: int, max_branches: int, rows: int
) -> None:
    inputs = (*INPUTS[:3], TensorSpec("kv.0.key", DType.FLOAT16, ("B", 2, rows, 16)))
    for profile in shape_profiles(
        role, max_batch=max_batch, num_draft=num_draft, max_branches=max_branches, rows=rows
    ):
        for shapes in profile_shapes(profile, inputs).values():
            for least, typical, most in zip(*shapes, strict=True):
                assert 1 <= least <= typical <= most
