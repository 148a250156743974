"""What is to be known about ``model.onnx`` before it is compiled: its border and its operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import BackendError
from engines.tensors import DType, TensorSpec

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class PluginNode:
    """A node that a TensorRT plugin is to replace; ``plugin`` is "namespace::name@version"."""

    name: str
    plugin: str


@dataclass(frozen=True, slots=True)
class GraphFile:
    """``operators`` maps each standard operator to the name of the first node that uses it;
    ``caches`` pairs each cache's input with the output that holds the same memory."""

    path: Path
    inputs: tuple[TensorSpec, ...]
    operators: dict[str, str]
    plugin_nodes: tuple[PluginNode, ...]
    caches: tuple[tuple[str, str], ...]

    @property
    def plugins(self) -> tuple[str, ...]:
        """Every plugin once, in the order of first use."""
        return tuple(dict.fromkeys(node.plugin for node in self.plugin_nodes))


def read_graph(path: Path) -> GraphFile:
    """Read the graph without its weights. Raises BackendError when it is not an ONNX file."""
    import onnx

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # protobuf's DecodeError has no public name
        raise BackendError(f"{path} is not an ONNX file ({' '.join(str(error).split())})") from None
    operators: dict[str, str] = {}
    for node in graph.node:
        if not node.domain:
            operators.setdefault(node.op_type, node.name)
    return GraphFile(
        path=path,
        inputs=tuple(_spec(value) for value in graph.input),
        operators=operators,
        plugin_nodes=tuple(_plugin_nodes(graph.node)),
        caches=tuple(_caches(graph)),
    )


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    if tensor.elem_type == onnx.TensorProto.BFLOAT16:
        dtype = DType.BFLOAT16
    else:
        dtype = DType(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name)
    shape = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return TensorSpec(value.name, dtype, shape)


def _plugin_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterable[PluginNode]:
    for node in nodes:
        attributes = {attribute.name: attribute.s.decode() for attribute in node.attribute}
        if "plugin_namespace" in attributes:
            version = attributes.get("plugin_version", "1")
            plugin = f"{attributes['plugin_namespace']}::{node.op_type}@{version}"
            yield PluginNode(node.name, plugin)


def _caches(graph: onnx.GraphProto) -> Iterable[tuple[str, str]]:
    """Inputs that TensorScatter updates into an output."""
    inputs = {value.name for value in graph.input}
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type != "TensorScatter":
            continue
        cache, updated = node.input[0], node.output[0]
        if cache in inputs and updated in outputs:
            yield cache, updated
