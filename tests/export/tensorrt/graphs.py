"""Small ONNX files with the operators that matter to a compiler."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

ATTENTION = """
<ir_version: 10, opset_import: ["": 24]>
g (float16[B, 2, T, 64] q, bool[B, 1, T, L] mask, float16[B, 2, 128, 64] cache, int64[B] at,
   float16[B, 2, T, 64] new)
  => (float16[B, 2, T, 64] y, float16[B, 2, 128, 64] updated)
{
    updated = TensorScatter <axis = 2, mode = "linear"> (cache, new, at)
    zero = Constant <value_ints: ints = [0]> ()
    axis = Constant <value_ints: ints = [2]> ()
    rows = Shape <start = 3, end = 4> (mask)
    keys = Slice (updated, zero, rows, axis)
    y = Attention <scale = 0.125> (q, keys, keys, mask)
}
"""
"""One layer of a decoder: a cache updated in place, and attention over its first L rows."""

DROPPED_OPERAND = """
<ir_version: 10, opset_import: ["": 24]>
g (float16[B, 2, T, 64] q, float16[B, 2, L, 64] k, bool[B, 1, T, L] mask, int64[B] lengths)
  => (float16[B, 2, T, 64] y)
{
    y = Attention <scale = 0.125> (q, k, k, mask, , , lengths)
}
"""
"""Attention with nonpad_kv_seqlen, which TensorRT-RTX's parser takes and wires to nothing."""

PLUGIN = """
<ir_version: 10, opset_import: ["": 24, "ssd": 1]>
g (float[B, 4] x) => (float[B, 4] y)
{
    y = ssd.Twice <plugin_namespace = "ssd", plugin_version = "1"> (x)
}
<domain: "ssd", opset_import: ["": 24]>
Twice <plugin_namespace: string = "ssd", plugin_version: string = "1"> (x) => (y)
{
    y = Add (x, x)
}
"""
"""A plugin node of a plugin that nobody has, with its function."""

UNSUPPORTED = """
<ir_version: 10, opset_import: ["": 24]>
g (float[B, 4] x) => (float[B, 4] y) { y = Bernoulli (x) }
"""


def write(folder: Path, text: str) -> Path:
    """``folder/model.onnx`` with every node named after its output."""
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = f"node.{node.output[0]}"
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path
