"""Models of one ssd:: node, and sessions with and without our kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime

from plugins.ort.library import find
from runtime.backends.cpu_kernels import INT8_COMPUTE


def node_model(
    function: str, node: str, border: str, constants: Mapping[str, np.ndarray] | None = None
) -> bytes:
    """A checked model with the border ``(inputs) => (outputs)``; ``constants`` are initializers."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 24, "ssd" : 1]> g {border} {{ {node} }}'
    )
    model.functions.append(onnx.parser.parse_function(function))
    for name, array in (constants or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def open_model(
    model: bytes, *, kernels: bool, threads: int = 1, optimised: Path | None = None
) -> Any:
    """An ONNX Runtime session, with our library of operators or without any."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry(*INT8_COMPUTE)
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    if kernels:
        options.register_custom_ops_library(str(find().path))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
