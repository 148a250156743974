"""Signatures: they say what the operators' other forms say, and notice what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import BackendError
from engines.tensors import DType
from plugins import tensorrt as plugins
from plugins.registry import OPERATORS
from plugins.sample.tensorrt import SIGNATURE as SAMPLE
from plugins.signature import Signature
from plugins.verify.tensorrt import SIGNATURE as VERIFY

SIGNATURES = pytest.mark.parametrize("signature", [VERIFY, SAMPLE], ids=lambda each: each.name)


@SIGNATURES
def test_ports_are_those_of_the_operator(signature: Signature) -> None:
    operator = OPERATORS[signature.name]
    assert tuple(port.name for port in signature.inputs) == operator.inputs
    assert tuple(port.name for port in signature.outputs) == operator.outputs
    assert (signature.namespace, signature.version) == (operator.domain, operator.version)
    assert signature.function_text == operator.function_text


def test_every_operator_is_a_layer_too() -> None:
    operators = [f"{each.domain}::{each.name}@{each.version}" for each in OPERATORS.values()]
    assert operators == list(plugins.NAMES)


@SIGNATURES
def test_every_output_size_is_the_size_of_an_input(signature: Signature) -> None:
    for port in signature.outputs:
        for symbol in port.shape:
            index, axis = signature.source(symbol)
            assert signature.inputs[index].shape[axis] == symbol


def verify_shapes(batch: int, rows: int, vocab: int) -> list[list[int]]:
    return [[batch, rows, vocab], [batch, rows - 1], [batch]]


sizes = st.integers(1, 300_000)


@given(sizes, sizes, sizes)
def test_shapes_of_one_call_fit_together(batch: int, rows: int, vocab: int) -> None:
    VERIFY.check_shapes(verify_shapes(batch, rows, vocab))


@given(sizes, sizes, sizes, st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]))
def test_one_size_that_differs_is_noticed(
    batch: int, rows: int, vocab: int, place: tuple[int, int]
) -> None:
    shapes = verify_shapes(batch, rows, vocab)
    shapes[place[0]][place[1]] += 1
    with pytest.raises(BackendError, match="ssd::Verify@1: "):
        VERIFY.check_shapes(shapes)


def test_a_size_may_be_met_first_where_it_is_reduced() -> None:
    turned = replace(VERIFY, inputs=VERIFY.inputs[1::-1])
    turned.check_shapes([[2, 4], [2, 5, 100]])
    with pytest.raises(BackendError, match=r"with R = 5, found \[2, 4, 100\]"):
        turned.check_shapes([[2, 4], [2, 4, 100]])


def test_refusals_name_the_input_and_both_sizes() -> None:
    with pytest.raises(BackendError, match=r"ids_map must be \[V\] with V = 100, found \[99\]"):
        SAMPLE.check_shapes([[2, 5, 100], [99]])
    with pytest.raises(BackendError, match=r"logits must be \[B, R, V\], found 2 dimensions"):
        SAMPLE.check_shapes([[2, 100], [100]])
    with pytest.raises(BackendError, match="takes logits, ids_map, found 1 inputs"):
        SAMPLE.check_types(["float32"])
    with pytest.raises(BackendError, match="ids_map must be int64, found int32"):
        SAMPLE.check_types(["float16", "int32"])


def test_the_digest_follows_all_that_a_layer_means() -> None:
    port = VERIFY.inputs[1]
    others = [
        replace(VERIFY, name="Check"),
        replace(VERIFY, namespace="sdd"),
        replace(VERIFY, version=2),
        replace(VERIFY, outputs=VERIFY.outputs[::-1]),
        replace(VERIFY, inputs=(VERIFY.inputs[0], replace(port, dtypes=(DType.INT32,)))),
        replace(VERIFY, inputs=(VERIFY.inputs[0], replace(port, shape=("B", "R")))),
        replace(VERIFY, function_text=VERIFY.function_text.replace("Min", "Max")),
    ]
    assert len({each.digest for each in [VERIFY, *others]}) == 1 + len(others)


def test_the_digest_does_not_follow_the_layout_of_the_function() -> None:
    laid_out = VERIFY.function_text.replace("\n    ", "\n\n  ")
    assert laid_out != VERIFY.function_text
    assert replace(VERIFY, function_text=laid_out).digest == VERIFY.digest


def test_the_digest_of_all_layers_is_no_layers_own() -> None:
    assert len(plugins.digest()) == 16
    assert plugins.digest() not in {VERIFY.digest, SAMPLE.digest}
