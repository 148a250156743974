"""From an ONNX file to a TensorRT network, with guards against what is left out silently."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from engines.errors import BackendError, UnsupportedModelError
from export.tensorrt.graph_file import GraphFile
from export.tensorrt.vendor import RTX, STANDARD, Vendor
from plugins import tensorrt as plugins
from plugins.vendor_log import readable

MINIMUM: dict[str, dict[str, tuple[int, int]]] = {
    STANDARD: {
        "Attention": (10, 14),
        "RotaryEmbedding": (10, 15),
        "RMSNormalization": (10, 15),
        "TensorScatter": (10, 15),
    },
    RTX: {
        "Attention": (1, 4),
        "RotaryEmbedding": (1, 4),
        "RMSNormalization": (1, 4),
        "TensorScatter": (1, 4),
    },
}
"""First release whose parser takes an operator (RTX: the oldest that this was tried with)."""
MINIMUM_FOR_PLUGINS: dict[str, tuple[int, int]] = {STANDARD: (10, 15), RTX: (1, 7)}
"""RTX 1.4 to 1.6 inline the function of a plugin node although its plugin is registered."""


def require_operators(vendor: Vendor, graph: GraphFile, expected: Collection[str]) -> None:
    """UnsupportedModelError when this release of the vendor is too old for an operator, or for
    nodes that one of ``expected`` has to replace."""
    table = MINIMUM[vendor.name]
    needs = [(op, node, table[op]) for op, node in graph.operators.items() if op in table]
    needs += [
        (node.plugin, node.name, MINIMUM_FOR_PLUGINS[vendor.name])
        for node in graph.plugin_nodes
        if node.plugin in expected
    ]
    for operator, node, least in needs:
        if vendor.release < least:
            raise UnsupportedModelError(
                f"{operator} (node {node}) needs {vendor.name} {_release(least)} or newer, "
                f"{vendor.version} is installed; upgrade it"
            )


def parse(
    vendor: Vendor, builder: Any, logger: Any, graph: GraphFile, expected: Collection[str]
) -> Any:
    """The file as a strongly typed network, checked by the guards below.

    Raises UnsupportedModelError naming the operator and node that TensorRT does not take, and
    BackendError when it cannot read the file.
    """
    trt = vendor.module
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph.path)):
        raise _refusal(vendor, parser, graph)
    require_consumed_inputs(vendor, network)
    require_plugin_layers(vendor, network, graph, expected)
    require_caches_in_place(vendor, network, graph)
    make_decomposable(vendor, network)
    return network


def require_consumed_inputs(vendor: Vendor, network: Any) -> None:
    """UnsupportedModelError when an input goes nowhere: a parser drops operands it does not know
    (Attention's nonpad_kv_seqlen) and the engine computes something else."""
    read = {
        tensor.name
        for layer in _layers(network)
        for tensor in (layer.get_input(i) for i in range(layer.num_inputs))
        if tensor is not None
    }
    names = (network.get_input(i).name for i in range(network.num_inputs))
    if lost := [name for name in names if name not in read]:
        raise UnsupportedModelError(
            f"{vendor.name} {vendor.version} ignores the graph's input {lost[0]}: its parser "
            "drops an operand that it does not know, and the engine would compute something else"
        )


def require_plugin_layers(
    vendor: Vendor, network: Any, graph: GraphFile, expected: Collection[str]
) -> None:
    """BackendError unless every node of one of ``expected`` became a plugin layer.

    Without a registered plugin TensorRT inlines the node's function and says nothing.
    """
    kind = vendor.module.LayerType.PLUGIN_V3
    present = {layer.name for layer in _layers(network) if layer.type == kind}
    for node in graph.plugin_nodes:
        if node.plugin in expected and node.name not in present:
            raise BackendError(
                f"{vendor.name} {vendor.version} inlined node {node.name} instead of taking the "
                f"plugin {node.plugin}: no plugin of that name and version is registered"
            )


def require_caches_in_place(vendor: Vendor, network: Any, graph: GraphFile) -> None:
    """BackendError unless each cache is updated in the memory that it comes in."""
    kind = vendor.module.LayerType.KV_CACHE_UPDATE
    updates = [layer for layer in _layers(network) if layer.type == kind]
    pairs = {(layer.get_input(0).name, layer.get_output(0).name) for layer in updates}
    if copied := [pair for pair in graph.caches if pair not in pairs]:
        raise BackendError(
            f"{vendor.name} {vendor.version} would copy the cache {copied[0][0]} in every call "
            "instead of updating it in place"
        )


def make_decomposable(vendor: Vendor, network: Any) -> None:
    """Let float32 attention be built of single steps: there is no fused kernel for it.

    Other types stay as they are, so that a missing fused kernel is an error and not slow.
    """
    trt = vendor.module
    for layer in _layers(network):
        if layer.type != trt.LayerType.ATTENTION_INPUT:
            continue
        if layer.get_input(0).dtype == trt.DataType.FLOAT:
            layer.__class__ = trt.IAttentionInputLayer  # the network gives out a bare ILayer
            layer.attention.decomposable = True


def _layers(network: Any) -> Iterator[Any]:
    return (network.get_layer(index) for index in range(network.num_layers))


def _refusal(vendor: Vendor, parser: Any, graph: GraphFile) -> BackendError | UnsupportedModelError:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    named = next((error for error in errors if error.node_operator()), None)
    if named is None:
        why = _why(errors[0].desc()) if errors else "it gave no reason"
        return BackendError(f"{vendor.name} {vendor.version} cannot read {graph.path}: {why}")
    refusals = plugins.refusals(vendor.module)  # a plugin's own words, for which TensorRT has none
    return UnsupportedModelError(
        f"{vendor.name} {vendor.version} does not take the operator {named.node_operator()} "
        f"(node {named.node_name()}): {refusals[0] if refusals else _why(named.desc())}"
    )


def _why(description: str) -> str:
    """The part of a parser's error that is meant for people; the rest is C++."""
    said = re.search(r'"(.+)"', description)
    if said:
        return said[1]
    if description.strip() in ("", "false"):
        return "it is not supported"
    lines = [readable(line) for line in description.splitlines()]
    told = [new for new, old in zip(lines, description.splitlines(), strict=True) if new != old]
    return re.sub(r"^Assertion failed: .*?: ", "", (told or lines)[0])


def _release(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
