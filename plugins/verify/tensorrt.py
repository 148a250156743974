"""ssd::Verify as a TensorRT layer."""

from __future__ import annotations

from typing import Any

from engines.tensors import DType
from plugins import layer
from plugins.signature import Port, Signature
from plugins.verify import launch, onnx

LOGITS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
IDS = (DType.INT64,)

SIGNATURE = Signature(
    namespace=onnx.DOMAIN,
    name=onnx.OP_NAME,
    version=onnx.VERSION,
    inputs=(
        Port("logits", LOGITS, ("B", "R", "V")),
        Port("drafts", IDS, ("B", "R-1")),
        Port("num_draft", IDS, ("B",)),
    ),
    outputs=(Port("accepted", IDS, ("B",)), Port("next", IDS, ("B",))),
    function_text=onnx.function_text(),
)


def make_creator(trt: Any, host: layer.LayerHost) -> Any:
    """The creator of Verify layers for the vendor module `trt`; the caller keeps it alive."""
    return layer.make_creator(trt, SIGNATURE, host, launch.scratch_bytes)
