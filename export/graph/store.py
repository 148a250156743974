"""Writing a graph: ``model.onnx`` and one ``model.onnx.data``, equal weights stored once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

from engines.profiles import round_up

ALIGNMENT = 4096
"""Offsets of weights in the data file: whole pages, so that runtimes can map them."""
INLINE_BYTES = 1024
"""Tensors up to this size stay in ``model.onnx``."""


def save_model(
    model: ir.Model, model_path: Path, data_path: Path, progress: Callable[[int, int], None]
) -> None:
    """Write both files; initializers over the same memory share their bytes on disk.

    (A tied int8 embedding and head are two initializers, because ONNX Runtime fuses a quantised
    matrix only when nothing else reads it.) The model's weights become references to the file.
    """
    found = model.graph.initializers.values()
    initializers = [(each, each.const_value) for each in found if each.const_value is not None]
    written: dict[tuple[int, int], int] = {}
    with data_path.open("wb") as data:
        for done, (value, content) in enumerate(initializers, start=1):
            if content.nbytes > INLINE_BYTES:
                _move_out(value, data, data_path, written)
            progress(done, len(initializers))
    model_path.write_bytes(ir.serde.serialize_model(model).SerializeToString())


def _move_out(
    value: ir.Value, data: BinaryIO, path: Path, written: dict[tuple[int, int], int]
) -> None:
    tensor = value.const_value
    assert tensor is not None
    array = tensor.numpy()
    key = (array.__array_interface__["data"][0], array.nbytes)
    if key not in written:
        written[key] = round_up(data.tell(), ALIGNMENT)
        data.seek(written[key])
        data.write(_bytes(tensor, array))
    value.const_value = ir.ExternalTensor(
        path.name,
        offset=written[key],
        length=tensor.nbytes,
        dtype=tensor.dtype,
        shape=ir.Shape(array.shape),
        name=tensor.name or "",
        base_dir=path.parent,
    )


def _bytes(tensor: ir.TensorProtocol, array: np.ndarray) -> bytes | memoryview:
    """A tensor as it is stored: 4-bit codes are packed in pairs, the rest is not copied."""
    if tensor.dtype.bitwidth < 8:
        return tensor.tobytes()
    return array.reshape(-1).view(np.uint8).data
