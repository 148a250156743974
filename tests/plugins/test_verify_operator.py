"""ssd::Verify: its forms agree, and the reference means what it says."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from engines.errors import UsageError
from plugins.registry import OPERATORS
from plugins.verify import onnx as form
from plugins.verify.reference import verify

INT64_MIN = np.iinfo(np.int64).min


def function_model(attributes: str) -> bytes:
    op = OPERATORS[form.OP_NAME]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {form.OPSET}, "{op.domain}" : {op.version}]>
        g (float[B, R, V] logits, int64[B, D] drafts, int64[B] num_draft)
            => (int64[B] accepted, int64[B] next) {{
            accepted, next = {op.domain}.{op.name} {attributes} (logits, drafts, num_draft)
        }}"""
    )
    model.functions.append(onnx.parser.parse_function(op.function_text))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    model = function_model('<plugin_namespace = "ssd", plugin_version = "1">')
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def plain_loop(logits, drafts, num_draft):
    """The definition, one token at a time, sharing no code with the reference."""
    accepted, following = [], []
    for row, row_drafts, count in zip(logits, drafts, num_draft, strict=True):
        choices = [int(np.flatnonzero(values == max(values))[0]) for values in row]
        length = 0
        while length < count and row_drafts[length] == choices[length]:
            length += 1
        accepted.append(length)
        following.append(choices[length])
    return accepted, following


def random_case(rng: np.random.Generator):
    """Few values and a small vocabulary make ties; most drafts follow the argmax."""
    batch, rows, vocab = rng.integers(1, 5), rng.integers(1, 7), rng.integers(1, 9)
    logits = rng.integers(-2, 3, size=(batch, rows, vocab)).astype(np.float32)
    masked = rng.random(logits.shape) < 0.3
    masked[..., rng.integers(vocab)] = False  # a row keeps a finite logit
    logits[masked] = -np.inf
    drafts = logits[:, :-1].argmax(-1)
    wrong = rng.random(drafts.shape) < 0.25
    drafts[wrong] = rng.integers(0, vocab, size=wrong.sum())
    num_draft = rng.integers(0, rows, size=batch)
    return logits, drafts, num_draft


def test_reference_function_and_definition_agree_on_1000_cases(session):
    rng = np.random.default_rng(20)
    seen_accepted, one_row, mixed = set(), 0, 0
    for _ in range(1000):
        logits, drafts, num_draft = random_case(rng)
        accepted, following = verify(logits, drafts, num_draft)
        assert accepted.dtype == following.dtype == np.int64
        assert (accepted.tolist(), following.tolist()) == plain_loop(logits, drafts, num_draft)
        from_graph = session.run(
            ["accepted", "next"], {"logits": logits, "drafts": drafts, "num_draft": num_draft}
        )
        np.testing.assert_array_equal(from_graph, [accepted, following])
        seen_accepted |= set(accepted.tolist())
        one_row += logits.shape[1] == 1
        mixed += len(set(num_draft.tolist())) > 1
    assert seen_accepted == set(range(6)), "the cases must reach every accepted count"
    assert one_row > 50
    assert mixed > 100


def forms(session, logits, drafts, num_draft) -> list[tuple[list[int], list[int]]]:
    """(accepted, next) from the reference and from the graph."""
    drafts, num_draft = np.array(drafts, np.int64), np.array(num_draft, np.int64)
    feed = {"logits": logits, "drafts": drafts, "num_draft": num_draft}
    results = [verify(logits, drafts, num_draft), session.run(["accepted", "next"], feed)]
    return [(accepted.tolist(), following.tolist()) for accepted, following in results]


def test_a_block_without_drafts_runs_in_the_graph(session):
    """R = 1: slices of width 0, a sum over nothing."""
    logits = np.array([[[0, 2, 2]], [[5, 1, 1]]], np.float32)
    assert forms(session, logits, [[], []], [0, 0]) == [([0, 0], [1, 0])] * 2


def test_equal_drafts_beyond_num_draft_are_not_accepted(session):
    """Padding of a short draft may equal the target's choice by chance."""
    logits = np.zeros((1, 4, 5), np.float32)
    for count in range(4):
        assert forms(session, logits, [[0, 0, 0]], [count]) == [([count], [0])] * 2


def test_a_match_after_a_mismatch_is_not_accepted(session):
    logits = np.eye(4, dtype=np.float32)[None]
    assert forms(session, logits, [[0, 3, 2]], [3]) == [([1], [1])] * 2


def test_padding_ids_outside_the_vocabulary_never_match(session):
    logits = np.zeros((1, 2, 3), np.float32)
    for padding in (-1, 3, INT64_MIN):
        assert forms(session, logits, [[padding]], [1]) == [([0], [0])] * 2


@pytest.mark.parametrize("attributes", ["", '<plugin_namespace = "other">'])
def test_the_function_takes_nodes_with_and_without_plugin_attributes(attributes):
    model = function_model(attributes)
    onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_the_function_uses_only_operators_of_both_executors():
    """One more operator here would build on ONNX Runtime and fail on TensorRT-RTX."""
    taken = {
        "ArgMax", "Cast", "Constant", "CumSum", "Equal", "GatherElements", "Min", "Not",
        "ReduceSum", "Slice", "Squeeze", "Unsqueeze",
    }  # fmt: skip
    function = onnx.parser.parse_function(form.function_text())
    assert {node.op_type for node in function.node} <= taken
    assert all(node.domain == "" for node in function.node)


def test_registry_names_the_functions_as_they_are():
    assert set(OPERATORS) == {"Verify", "Sample"}
    for op in OPERATORS.values():
        function = onnx.parser.parse_function(op.function_text)
        assert (function.name, function.domain) == (op.name, op.domain)
        assert tuple(function.input) == op.inputs
        assert tuple(function.output) == op.outputs
        assert {a.name for a in function.attribute_proto} == {"plugin_namespace", "plugin_version"}


@pytest.mark.parametrize(
    ("drafts", "num_draft", "found"),
    [
        (np.zeros((1, 1), np.int64), np.zeros(1, np.int64), "(1, 1)"),
        (np.zeros((1, 2), np.int64), np.zeros(2, np.int64), "(2,)"),
        (np.zeros((1, 2), np.int64), np.array([3]), "[3]"),
        (np.zeros((1, 2), np.int64), np.array([-1]), "[-1]"),
    ],
)
def test_reference_refuses_what_does_not_fit(drafts, num_draft, found):
    with pytest.raises(UsageError) as caught:
        verify(np.zeros((1, 3, 4), np.float32), drafts, num_draft)
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)
