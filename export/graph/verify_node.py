"""The ssd::Verify node and the function that gives it meaning inside the file."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.parser
import onnx_ir as ir

from export.graph.tape import GraphTape
from plugins.verify import onnx as verify


def verify_function() -> ir.Function:
    """The operator's body: ONNX Runtime runs it, TensorRT takes the plugin of that name."""
    return ir.serde.deserialize_function(onnx.parser.parse_function(verify.function_text()))


def verify_node(
    tape: GraphTape, logits: ir.Value, drafts: ir.Value, num_draft: ir.Value
) -> Sequence[ir.Value]:
    """accepted [B], next [B] of logits [B, R, V], drafts [B, R - 1], num_draft [B]."""
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
