"""ssd::Verify as an ONNX function: what an engine without a plugin of that name runs.

A node of the function must carry the attribute `plugin_namespace`: TensorRT takes its plugin
only then, and silently inlines the function otherwise. The function declares it (and
`plugin_version`) so that the node stays valid; it does not use them.

Inputs and outputs are those of `plugins.verify.reference.verify`. Only operators that both
ONNX Runtime and TensorRT-RTX take.
"""

from __future__ import annotations

OP_NAME = "Verify"
DOMAIN = "ssd"
VERSION = 1
OPSET = 24

INPUTS = ("logits", "drafts", "num_draft")
"""float32 [B, R, V], int64 [B, R-1], int64 [B]"""
OUTPUTS = ("accepted", "next")
"""int64 [B], int64 [B]"""

# A prefix matches as long as no mismatch was counted; num_draft cuts a prefix, so the smaller
# of the two lengths is the answer. With R = 1 the slices have width 0 and the sum is 0.
_FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
{OP_NAME} <plugin_namespace: string = "{DOMAIN}", plugin_version: string = "{VERSION}">
    ({", ".join(INPUTS)}) => ({", ".join(OUTPUTS)})
{{
    first = Constant <value_ints: ints = [0]> ()
    last = Constant <value_ints: ints = [-1]> ()
    row_axis = Constant <value_ints: ints = [1]> ()
    row_axis_scalar = Constant <value_int: int = 1> ()
    zero = Constant <value_int: int = 0> ()

    best = ArgMax <axis = 2, keepdims = 0, select_last_index = 0> (logits)
    best_of_drafted = Slice (best, first, last, row_axis)
    matches = Equal (best_of_drafted, drafts)
    differs = Not (matches)
    differs_count = Cast <to = 7> (differs)
    num_mismatches = CumSum (differs_count, row_axis_scalar)
    in_prefix = Equal (num_mismatches, zero)
    in_prefix_count = Cast <to = 7> (in_prefix)
    prefix = ReduceSum <keepdims = 0> (in_prefix_count, row_axis)
    accepted = Min (prefix, num_draft)
    accepted_column = Unsqueeze (accepted, row_axis)
    next_column = GatherElements <axis = 1> (best, accepted_column)
    next = Squeeze (next_column, row_axis)
}}
"""


def function_text() -> str:
    """The function in ONNX textual syntax, for `onnx.parser.parse_function`."""
    return _FUNCTION
