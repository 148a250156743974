"""ssd::Sample as a TensorRT layer."""

from __future__ import annotations

from typing import Any

from engines.tensors import DType
from plugins import layer
from plugins.sample import launch, onnx
from plugins.signature import Port, Signature

LOGITS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
IDS = (DType.INT64,)

SIGNATURE = Signature(
    namespace=onnx.DOMAIN,
    name=onnx.OP_NAME,
    version=onnx.VERSION,
    inputs=(Port("logits", LOGITS, ("B", "R", "V")), Port("ids_map", IDS, ("V",))),
    outputs=(Port("sample", IDS, ("B", "R")),),
    function_text=onnx.function_text(),
)


def make_creator(trt: Any, host: layer.LayerHost) -> Any:
    """The creator of Sample layers for the vendor module `trt`; the caller keeps it alive."""
    return layer.make_creator(trt, SIGNATURE, host, launch.scratch_bytes)
