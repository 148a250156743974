"""The ssd:: nodes, and the functions that give them meaning inside the file.

ONNX Runtime runs the function, TensorRT takes the plugin of its name in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.parser
import onnx_ir as ir

from export.graph.tape import GraphTape
from plugins.sample import onnx as sample
from plugins.verify import onnx as verify


def verify_node(
    tape: GraphTape, logits: ir.Value, drafts: ir.Value, num_draft: ir.Value
) -> Sequence[ir.Value]:
    """accepted [B], next [B] of logits [B, R, V], drafts [B, R - 1], num_draft [B]."""
    tape.function(function(verify.function_text()))
    return tape.ops(
        verify.OP_NAME,
        logits,
        drafts,
        num_draft,
        name="verify",
        num_outputs=2,
        domain=verify.DOMAIN,
        plugin_namespace=verify.DOMAIN,
        plugin_version=str(verify.VERSION),
    )


def sample_node(tape: GraphTape, logits: ir.Value, ids_map: ir.Value) -> ir.Value:
    """Greedy choice [B, R], in target ids, of logits [B, R, V] and ids_map [V]."""
    tape.function(function(sample.function_text()))
    return tape.op(
        sample.OP_NAME,
        logits,
        ids_map,
        name="sample",
        domain=sample.DOMAIN,
        plugin_namespace=sample.DOMAIN,
        plugin_version=str(sample.VERSION),
    )


def carry_function(model: ir.Model, text: str, version: int) -> None:
    """Give a finished model the body of an operator that some of its nodes stand for."""
    body = function(text)
    model.functions[body.identifier()] = body
    model.graph.opset_imports[body.domain] = version


def function(text: str) -> ir.Function:
    """A function of a model, of its ONNX textual syntax."""
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))
