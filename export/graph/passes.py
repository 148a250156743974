"""Rewrites of the canonical graph that a backend needs, each a pattern and what replaces it."""

from __future__ import annotations

import onnx_ir as ir

from export.graph.decoder import ATTENDED
from export.graph.precision import ONNXRUNTIME

ROWS = "L"


def rewrite_for(backend: str, model: ir.Model) -> None:
    """Apply the backend's rewrites in place. TensorRT takes the canonical graph."""
    if backend == ONNXRUNTIME:
        bind_attended_rows(model)
        pad_single_queries(model)


def bind_attended_rows(model: ir.Model) -> None:
    """Let the caller bind just the attended rows: the cache's S becomes L and the cuts go away.

    ONNX Runtime copies what Slice cuts, every layer and step (25 MB a step at 512 rows of the
    default target); the runtime binds a bucket of rows instead.
    """
    for node in list(model.graph):
        if node.op_type == "Slice" and (node.name or "").endswith(ATTENDED):
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])  # type: ignore[arg-type]
            model.graph.remove(node, safe=True)
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if (value.name or "").startswith("kv."):
            shape = list(value.shape)  # type: ignore[arg-type]
            value.shape = ir.Shape([*shape[:2], ROWS, shape[3]])
    for node in list(model.graph):
        if node.name == "rows" and not node.outputs[0].uses():
            model.graph.remove(node, safe=True)


def pad_single_queries(model: ir.Model) -> None:
    """Give Attention two query rows where the call has one, so that every T rounds alike.

    ONNX Runtime's Attention takes another path for one query row and rounds differently there,
    which would make plain decoding and verification differ. Row 0 is doubled when T = 1 (its
    mask with it, so no row is fully masked); nothing is copied in for T >= 2.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "Attention"]
    if not attentions:
        return
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
    """Inserts nodes before ``before`` and shares int constants."""

    def __init__(self, graph: ir.Graph, before: ir.Node) -> None:
        self.graph = graph
        self.before = before

    def ints(self, value: int) -> ir.Value:
        name = f"const.{value}"
        if name not in self.graph.initializers:
            tensor = ir.tensor([value], dtype=ir.DataType.INT64, name=name)
            self.graph.register_initializer(ir.Value(name=name, const_value=tensor))
        return self.graph.initializers[name]

    def op(
        self, kind: str, inputs: list[ir.Value | None], name: str, **attributes: object
    ) -> ir.Value:
        attrs = ir.convenience.convert_attributes(attributes)  # type: ignore[arg-type]
        node = ir.Node("", kind, inputs, attrs, name=name)
        node.outputs[0].name = name
        self.graph.insert_before(self.before, node)
        return node.outputs[0]

    def doubled(self, value: ir.Value | None, extra: ir.Value, name: str) -> ir.Value:
        """``value`` with its first ``extra`` rows (axis 2) repeated at the end."""
        head = self.op("Slice", [value, self.ints(0), extra, self.ints(2)], f"{name}.extra")
        return self.op("Concat", [value, head], name, axis=2)


def _input(graph: ir.Graph, name: str) -> ir.Value:
    return next(value for value in graph.inputs if value.name == name)
