"""ssd::GroupedAttention as an ONNX function: what ONNX Runtime makes of it without our kernel.

The query heads that share keys become rows of one head. ONNX Runtime's Attention reads keys and
values once a query head, and takes another path, which rounds differently, for a head of one row;
so plain decoding and verification would differ. In memory [B, H, T, D] is [B, G, H / G * T, D].
"""

from __future__ import annotations

OP_NAME = "GroupedAttention"
DOMAIN = "ssd"
VERSION = 1
OPSET = 24

INPUTS = ("queries", "keys", "values", "bias")
"""float32 [B, H, T, D], [B, G, L, D] twice, [B, 1, H / G * T, L]: the same T rows H / G times"""
OUTPUTS = ("context",)
"""float32 [B, T, H * D]"""

SCALE = "scale"
GROUPED, APART, MERGED = "grouped", "apart", "merged"
"""Attributes that only the function reads: shapes to bring rows into."""

_FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
{OP_NAME} <{SCALE}, {GROUPED}, {APART}, {MERGED}> ({", ".join(INPUTS)}) => ({", ".join(OUTPUTS)})
{{
    to_groups = Constant <value_ints: ints = @{GROUPED}> ()
    to_heads = Constant <value_ints: ints = @{APART}> ()
    to_context = Constant <value_ints: ints = @{MERGED}> ()
    rows = Reshape (queries, to_groups)
    attended = Attention <scale: float = @{SCALE}> (rows, keys, values, bias)
    heads = Reshape (attended, to_heads)
    by_token = Transpose <perm = [0, 2, 1, 3]> (heads)
    context = Reshape (by_token, to_context)
}}
"""


def function_text() -> str:
    """The function in ONNX textual syntax, for `onnx.parser.parse_function`."""
    return _FUNCTION


def shapes(num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, list[int]]:
    """The attributes beside the scale, for a layer's heads."""
    return {
        GROUPED: [0, num_kv_heads, -1, head_dim],
        APART: [0, num_heads, -1, head_dim],
        MERGED: [0, 0, num_heads * head_dim],
    }
