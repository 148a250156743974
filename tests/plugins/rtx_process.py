"""Run in a process of its own: what TensorRT-RTX makes of our layers.

Plugin registries belong to a process and cannot be emptied, and a parser that goes wrong can end
its process. Takes a function's name and its arguments as a JSON object, prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from export.tensorrt import vendor
from export.tensorrt.capabilities import local_capability, supported_capabilities
from plugins import tensorrt as plugins

VENDOR = vendor.load("tensorrt-rtx")
trt = VENDOR.module


def build(
    model: str,
    num_registrations: int = 1,
    profile: dict[str, list[list[int]]] | None = None,
    capabilities: list[str] | None = None,
) -> dict[str, Any]:
    """Parse a model, and compile it if there are ``capabilities`` ("SM89").

    ``profile`` has the least, usual and largest shape of each dynamic input.
    """
    found: dict[str, Any] = {"missing before": plugins.missing(trt, plugins.NAMES)}
    for _ in range(num_registrations):
        plugins.register(trt)
    found["missing"] = plugins.missing(trt, plugins.NAMES)
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.INTERNAL_ERROR))
    found["parsed"] = parser.parse_from_file(model)
    found["layers"] = [network.get_layer(i).type.name for i in range(network.num_layers)]
    if found["parsed"]:
        outputs = [network.get_output(i) for i in range(network.num_outputs)]
        found["outputs"] = {each.name: [each.dtype.name, *each.shape] for each in outputs}
        if capabilities:
            plan = _compile(builder, network, profile or {}, capabilities)
            found["plan"] = None if plan is None else bytes(plan).decode("latin-1")
    found["refusals"] = plugins.refusals(trt)
    return found


def _compile(
    builder: Any, network: Any, profile: dict[str, list[list[int]]], capabilities: list[str]
) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    shapes = builder.create_optimization_profile()
    for name, sizes in profile.items():
        shapes.set_shape(name, *sizes)
    config.add_optimization_profile(shapes)
    return builder.build_serialized_network(network, config)


def read(plan: str, registered: bool) -> dict[str, Any]:
    """Deserialise a plan, with our layers registered or not; needs a GPU."""
    if registered:
        plugins.register(trt)
    runtime = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR))
    engine = runtime.deserialize_cuda_engine(Path(plan).read_bytes())
    is_supported = local_capability() in supported_capabilities(VENDOR)
    return {"read": engine is not None, "GPU is supported": is_supported}


def restore() -> dict[str, Any]:
    """Create layers from the fields of another, as they are and with one character changed."""
    plugins.register(trt)
    creator = trt.get_plugin_registry().get_creator("Verify", "1", "ssd")
    layer = creator.create_plugin("", trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD)
    fields = layer.get_fields_to_serialize()
    texts = {each.name: bytes(each.data).decode() for each in fields}
    restored = creator.create_plugin("", fields, trt.TensorRTPhase.RUNTIME)
    changed_data = np.array(fields[0].data)
    changed_data[0] ^= 1
    changed = trt.PluginField(fields[0].name, changed_data, trt.PluginFieldType.CHAR)
    refusal = ""
    try:
        creator.create_plugin("", trt.PluginFieldCollection([changed]), trt.TensorRTPhase.RUNTIME)
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    return {"fields": texts, "restored": restored.plugin_name, "refusal": refusal}


def enqueue() -> dict[str, Any]:
    """Call a layer as an engine does, with a launcher that notes what it is given."""
    launches: list[Any] = []
    plugins.register(
        trt,
        lambda layer, inputs, outputs, stream, workspace: launches.append(
            [
                layer,
                *([t.address, t.dtype, t.shape] for t in (*inputs, *outputs)),
                stream,
                workspace,
            ]
        ),
    )
    creator = trt.get_plugin_registry().get_creator("Sample", "1", "ssd")
    layer = creator.create_plugin("", trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD)
    layer = layer.attach_to_context(None)
    inputs = [_desc(trt.DataType.BF16, 2, 5, 100), _desc(trt.DataType.INT64, 100)]
    outputs = [_desc(trt.DataType.INT64, 2, 5)]
    layer.on_shape_change(inputs, outputs)
    layer.enqueue(inputs, outputs, [0x10, 0x20], [0x30], 0x40, 7)
    return {"launches": launches}


def _desc(dtype: Any, *dims: int) -> Any:
    desc = trt.PluginTensorDesc()
    desc.type, desc.dims, desc.format = dtype, trt.Dims(dims), trt.TensorFormat.LINEAR
    return desc


if __name__ == "__main__":
    function = {"build": build, "read": read, "restore": restore, "enqueue": enqueue}[sys.argv[1]]
    sys.stdout.write(json.dumps(function(**json.loads(sys.argv[2]))))
