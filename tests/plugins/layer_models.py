"""ONNX files of a single ssd:: node."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

from plugins.sample import onnx as sample_onnx
from plugins.verify import onnx as verify_onnx

NODE = '<plugin_namespace = "ssd", plugin_version = "1">'


def _save(path: Path, graph: str, function: str | None) -> str:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {verify_onnx.OPSET}, "ssd" : 1]> {graph}'
    )
    if function is not None:
        model.functions.append(onnx.parser.parse_function(function))
    onnx.save(model, path)
    return str(path)


def verify_model(
    path: Path,
    *,
    attributes: str = NODE,
    logits: str = "float",
    ids: str = "int64",
    dims: tuple[str, str, str] = ("B", "R", "D"),
    function: str | None = verify_onnx.function_text(),
) -> str:
    b, r, d = dims
    graph = f"""g ({logits}[{b}, {r}, 100] logits, {ids}[{b}, {d}] drafts, {ids}[{b}] num_draft)
        => (int64[{b}] accepted, int64[{b}] next)
        {{ accepted, next = ssd.Verify {attributes} (logits, drafts, num_draft) }}"""
    return _save(path / "model.onnx", graph, function)


def sample_model(path: Path, *, logits: str = "float", dims: str = "B, R") -> str:
    graph = f"""g ({logits}[{dims}, 100] logits, int64[100] ids_map) => (int64[{dims}] sample)
        {{ sample = ssd.Sample {NODE} (logits, ids_map) }}"""
    return _save(path / "model.onnx", graph, sample_onnx.function_text())
