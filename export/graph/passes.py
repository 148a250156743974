"""Rewrites of the canonical graph that a backend needs, each a pattern and what replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from export.checkpoint.spec import ModelSpec
from export.graph.coded import name_coded_products
from export.graph.decoder import ATTENDED
from export.graph.operators import carry_function
from export.graph.precision import ONNXRUNTIME
from plugins.grouped_attention import onnx as grouped_attention

ROWS = "L"
TOKEN_AXIS = 2
"""Of queries [B, H, T, D] and of masks [B, 1, T, L]."""


def rewrite_for(backend: str, model: ir.Model, spec: ModelSpec) -> None:
    """Apply the backend's rewrites in place. TensorRT takes the canonical graph."""
    if backend == ONNXRUNTIME:
        name_coded_products(model)
        bind_attended_rows(model)
        split_heads_once(model, spec)
        if spec.num_heads > spec.num_kv_heads:
            group_queries(model, spec)
        else:
            pad_single_queries(model)


def bind_attended_rows(model: ir.Model) -> None:
    """Let the caller bind just the attended rows: the cache's S becomes L and the cuts go away.

    ONNX Runtime copies what Slice cuts, every layer and step (25 MB a step at 512 rows of the
    default target); the runtime binds a bucket of rows instead.
    """
    for node in list(model.graph):
        if node.op_type == "Slice" and (node.name or "").endswith(ATTENDED):
            cut = node.inputs[0]
            assert cut is not None, "a Slice has something to cut"
            ir.convenience.replace_all_uses_with(node.outputs[0], cut)
            _remove_unread(model.graph, node.outputs[0])
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if (value.name or "").startswith("kv."):
            assert value.shape is not None, "every value of the border has a shape"
            batch, heads, _, size = value.shape
            value.shape = ir.Shape([batch, heads, ROWS, size])


def split_heads_once(model: ir.Model, spec: ModelSpec) -> None:
    """Cut queries, keys and values apart after one Transpose of all heads, where each had its own.

    Left alone where something else (a norm, the heads' own) stands before the Transpose.
    """
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    for split in [node for node in model.graph if (node.name or "").endswith(".attention.split")]:
        old = [_by_head(part) for part in split.outputs]
        if None in old:
            continue
        maker = _Maker(model.graph, split)
        fused = split.inputs[0]
        every = maker.op(
            "Reshape", [fused, maker.ints(0, 0, sum(heads), spec.head_dim)], f"{split.name}.heads"
        )
        every = maker.op("Transpose", [every], f"{split.name}.by_head", perm=[0, 2, 1, 3])
        new = maker.ops("Split", [every, maker.ints(*heads)], f"{split.name}.parts", 3, axis=1)
        for before, after in zip(old, new, strict=True):
            assert before is not None
            ir.convenience.replace_all_uses_with(before, after)
            _remove_unread(model.graph, before)


def group_queries(model: ir.Model, spec: ModelSpec) -> None:
    """Make attention one ssd::GroupedAttention a layer, up to the context that the output reads.

    The mask is made numbers, and repeated for the heads of a group, once for all layers.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "Attention"]
    maker = _Maker(graph, attentions[0])
    grouped_masks: dict[str, ir.Value] = {}
    shapes = grouped_attention.shapes(spec.num_heads, spec.num_kv_heads, spec.head_dim)
    for node in attentions:
        maker.before = node
        queries, keys, values, mask = node.inputs
        assert mask is not None
        name = f"{mask.name}.grouped"
        if name not in grouped_masks:
            hidden = maker.number("hidden", float(np.finfo(np.float32).min))
            bias = maker.op("Where", [mask, maker.number("seen", 0), hidden], f"{mask.name}.bias")
            copies = [bias] * (spec.num_heads // spec.num_kv_heads)
            grouped_masks[name] = maker.op("Concat", copies, name, axis=TOKEN_AXIS)
        context = _only_user(_only_user(node.outputs[0], "Transpose"), "Reshape")
        grouped = maker.op(
            grouped_attention.OP_NAME,
            [queries, keys, values, grouped_masks[name]],
            node.name or "",
            domain=grouped_attention.DOMAIN,
            scale=node.attributes["scale"].as_float(),
            **shapes,
        )
        ir.convenience.replace_all_uses_with(context, grouped)
        _remove_unread(graph, context)
    carry_function(model, grouped_attention.function_text(), grouped_attention.VERSION)


def pad_single_queries(model: ir.Model) -> None:
    """Give Attention two query rows where the call has one: every query head has its own keys.

    See ``group_queries`` for why. Row 0 is doubled when T = 1 (its mask with it, so no row is fully
    masked); nothing is copied in for T >= 2.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "Attention"]
    tokens = _input(graph, "tokens")
    maker = _Maker(graph, attentions[0])
    count = maker.op("Shape", [tokens], "query_rows", start=1, end=2)
    missing = maker.op("Sub", [maker.ints(2), count], "query_rows.missing")
    extra = maker.op("Max", [missing, maker.ints(0)], "query_rows.extra")
    padded_masks: dict[str, ir.Value] = {}
    for node in attentions:
        maker.before = node
        mask = node.inputs[3]
        assert mask is not None
        name = f"{mask.name}.padded"
        if name not in padded_masks:
            padded_masks[name] = maker.doubled(mask, extra, name)
        query = node.inputs[0]
        node.replace_input_with(0, maker.doubled(query, extra, f"{node.name}.query_padded"))
        node.replace_input_with(3, padded_masks[name])
        users = list(node.outputs[0].uses())
        maker.before = users[0].node
        cut = maker.op(
            "Slice",
            [node.outputs[0], maker.ints(0), count, maker.ints(2)],
            f"{node.name}.unpadded",
        )
        for use in users:
            use.node.replace_input_with(use.idx, cut)


class _Maker:
    """Inserts nodes before ``before`` and shares constants."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self.graph = graph
        self.before = before

    def ints(self, *values: int) -> ir.Value:
        name = "const." + "_".join(str(value) for value in values)
        return self._constant(name, ir.tensor(list(values), dtype=ir.DataType.INT64, name=name))

    def number(self, name: str, value: float) -> ir.Value:
        """A float32 scalar."""
        name = f"const.{name}"
        return self._constant(name, ir.tensor(value, dtype=ir.DataType.FLOAT, name=name))

    def op(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        *,
        domain: str = "",
        **attributes: object,
    ) -> ir.Value:
        (value,) = self.ops(kind, inputs, name, 1, domain=domain, **attributes)
        value.name = name
        return value

    def ops(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        num_outputs: int,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        attrs = ir.convenience.convert_attributes(attributes)
        node = ir.Node(domain, kind, inputs, attrs, num_outputs=num_outputs, name=name)
        for index, value in enumerate(node.outputs):
            value.name = f"{name}.{index}"
        self.graph.insert_before(self.before, node)
        return node.outputs

    def doubled(self, value: ir.Value | None, extra: ir.Value, name: str) -> ir.Value:
        """``value`` with its first ``extra`` tokens repeated at the end."""
        cut = [value, self.ints(0), extra, self.ints(TOKEN_AXIS)]
        head = self.op("Slice", cut, f"{name}.extra")
        return self.op("Concat", [value, head], name, axis=TOKEN_AXIS)

    def _constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        if name not in self.graph.initializers:
            self.graph.register_initializer(ir.Value(name=name, const_value=tensor))
        return self.graph.initializers[name]


def _by_head(part: ir.Value) -> ir.Value | None:
    """What becomes of a part of the fused projection, if it is just brought into heads."""
    value = part
    for kind in ("Reshape", "Transpose"):
        uses = list(value.uses())
        if len(uses) != 1 or uses[0].node.op_type != kind:
            return None
        value = uses[0].node.outputs[0]
    return value


def _only_user(value: ir.Value, kind: str) -> ir.Value:
    """What the one node that reads ``value`` makes of it."""
    (use,) = value.uses()
    assert use.node.op_type == kind, f"{value.name} goes into {use.node.op_type}"
    return use.node.outputs[0]


def _remove_unread(graph: ir.Graph, value: ir.Value) -> None:
    """Remove what gives ``value``, and all before it, where nothing else reads it."""
    node = value.producer()
    if node is None:
        if not value.uses():
            graph.initializers.pop(value.name or "", None)
        return
    if any(output.uses() for output in node.outputs):
        return
    inputs = [each for each in node.inputs if each is not None]
    graph.remove(node, safe=True)
    for each in inputs:
        _remove_unread(graph, each)


def _input(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.inputs if value.name == name)
