"""ssd::Sample as an ONNX function: what an engine without a plugin of that name runs.

Attributes and operators are chosen as in `plugins.verify.onnx`, which says why. `ids_map` is there
for a draft of the target's whole vocabulary too: TensorRT hands no absent input to a plugin, and
a second arity would be a second operator, for 8 bytes a token.
"""

from __future__ import annotations

OP_NAME = "Sample"
DOMAIN = "ssd"
VERSION = 1
OPSET = 24

INPUTS = ("logits", "ids_map")
"""float32 [B, R, V], int64 [V]"""
OUTPUTS = ("sample",)
"""int64 [B, R]"""

_FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>
{OP_NAME} <plugin_namespace: string = "{DOMAIN}", plugin_version: string = "{VERSION}">
    ({", ".join(INPUTS)}) => ({", ".join(OUTPUTS)})
{{
    best = ArgMax <axis = 2, keepdims = 0, select_last_index = 0> (logits)
    sample = Gather <axis = 0> (ids_map, best)
}}
"""


def function_text() -> str:
    """The function in ONNX textual syntax, for `onnx.parser.parse_function`."""
    return _FUNCTION
