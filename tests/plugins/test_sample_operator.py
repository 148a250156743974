"""ssd::Sample: its forms agree, and the reference means what it says."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from engines.errors import UsageError
from plugins.registry import OPERATORS
from plugins.sample import onnx as form
from plugins.sample.reference import sample


def open_function(attributes: str) -> onnxruntime.InferenceSession:
    op = OPERATORS[form.OP_NAME]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {form.OPSET}, "{op.domain}" : {op.version}]>
        g (float[B, R, V] logits, int64[V] ids_map) => (int64[B, R] sample) {{
            sample = {op.domain}.{op.name} {attributes} (logits, ids_map)
        }}"""
    )
    model.functions.append(onnx.parser.parse_function(op.function_text))
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return open_function('<plugin_namespace = "ssd", plugin_version = "1">')


def random_case(rng: np.random.Generator):
    """Few values and a small vocabulary make ties; half of the maps are the identity."""
    batch, rows, vocab = rng.integers(1, 5), rng.integers(1, 7), rng.integers(1, 9)
    logits = rng.integers(-2, 3, size=(batch, rows, vocab)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    ids_map = rng.permutation(10 * vocab)[:vocab] if rng.random() < 0.5 else np.arange(vocab)
    return logits, ids_map


def test_reference_function_and_definition_agree_on_1000_cases(session):
    rng = np.random.default_rng(21)
    num_ties = 0
    for _ in range(1000):
        logits, ids_map = random_case(rng)
        (found,) = sample(logits, ids_map)
        assert found.dtype == np.int64
        for choice, values in zip(found.flat, logits.reshape(-1, logits.shape[-1]), strict=True):
            best = [index for index, value in enumerate(values) if value == max(values)]
            assert choice == ids_map[best[0]]
            num_ties += len(best) > 1
        from_graph = session.run(["sample"], {"logits": logits, "ids_map": ids_map})[0]
        np.testing.assert_array_equal(from_graph, found)
    assert num_ties > 1000


def test_of_equal_logits_the_lowest_draft_id_wins_and_not_the_lowest_target_id(session):
    feed = {"logits": np.zeros((1, 1, 3), np.float32), "ids_map": np.array([7, 2, 0])}
    assert sample(**feed)[0].tolist() == [[7]]
    assert session.run(["sample"], feed)[0].tolist() == [[7]]


@pytest.mark.parametrize("attributes", ["", '<plugin_namespace = "other">'])
def test_the_function_takes_nodes_with_and_without_plugin_attributes(attributes):
    open_function(attributes)


def test_the_function_uses_only_operators_of_both_executors():
    """One more operator here would build on ONNX Runtime and fail on TensorRT-RTX."""
    function = onnx.parser.parse_function(form.function_text())
    assert {node.op_type for node in function.node} <= {"ArgMax", "Gather"}
    assert all(node.domain == "" for node in function.node)


def test_reference_refuses_a_map_of_another_vocabulary():
    with pytest.raises(UsageError) as caught:
        sample(np.zeros((1, 3, 4), np.float32), np.arange(5))
    assert "(4,)" in str(caught.value)
    assert "(5,)" in str(caught.value)
    assert "\n" not in str(caught.value)
