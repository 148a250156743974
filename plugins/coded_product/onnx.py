"""ssd::CodedProduct as an ONNX function: what ONNX Runtime makes of it without our kernel.

After it is inlined, the pair of nodes is the pattern that ONNX Runtime looks for when it fuses
quantised weights into MatMulNBits.
"""

from __future__ import annotations

OP_NAME = "CodedProduct"
DOMAIN = "ssd"
VERSION = 1
OPSET = 24

INPUTS = ("x", "codes", "scales")
"""float32 [..., K], int8 [K, N], float32 [K / block, N]"""
OUTPUTS = ("y",)
"""float32 [..., N]"""
BLOCK = "block"
"""The attribute: how many inputs of a column share a scale."""

_FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
{OP_NAME} <{BLOCK}> ({", ".join(INPUTS)}) => ({", ".join(OUTPUTS)})
{{
    matrix = DequantizeLinear <axis = 0, block_size: int = @{BLOCK}> (codes, scales)
    y = MatMul (x, matrix)
}}
"""


def fits(block: int) -> bool:
    """Whether the kernel has blocks of that size: loads are of 16 floats, and float32 holds the
    sums of up to 1,024 products."""
    return block % 16 == 0 and 16 <= block <= 1024


def function_text() -> str:
    """The function in ONNX textual syntax, for `onnx.parser.parse_function`."""
    return _FUNCTION
