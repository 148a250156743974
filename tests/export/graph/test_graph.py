"""What the files of a built engine hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from engines.border import graph_inputs, graph_outputs
from engines.errors import CheckpointError, UnsupportedModelError
from engines.manifest import Limits
from export.build.build import build
from export.build.options import BuildOptions
from export.checkpoint.api import open_checkpoint
from export.graph.api import GraphRequest, build_graph
from export.graph.rope import rotary_tables
from runtime.backends.cpu_kernels import INT8_COMPUTE
from tests.helpers.checkpoints import make_llama
from tests.helpers.tiny_bundle import tiny_bundle


def graph_of(bundle, role="target"):
    return onnx.load(bundle.path / role / "model.onnx", load_external_data=False)


def engine_of(bundle, role):
    return next(engine for engine in bundle.engines if engine.role == role)


def request_for(folder, **changes):
    checkpoint = open_checkpoint(folder)
    options = BuildOptions(target=str(folder), max_len=64, precision="fp32")
    fields = {
        "role": "target",
        "spec": checkpoint.spec,
        "tensor": checkpoint.tensor,
        "names": checkpoint.tensor_names(),
        "limits": options.limits,
        "kv": options.kv_layout("target", checkpoint.spec),
        "precision": "fp32",
        "block": 32,
        "backend": "onnxruntime",
    }
    return GraphRequest(**{**fields, **changes})


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_an_engine_is_one_model_and_one_data_file(role, precision):
    bundle = tiny_bundle(precision=precision)
    names = {path.name for path in (bundle.path / role).iterdir()}
    assert names - {"manifest.json", "vocab_map.npy"} == {"model.onnx", "model.onnx.data"}
    locations = {
        entry.value
        for tensor in graph_of(bundle, role).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    assert locations == {"model.onnx.data"}


def test_a_tied_embedding_is_stored_once(tmp_path):
    sizes = {}
    for tied in (True, False):
        make_llama(tmp_path / f"{tied}", hidden=64, vocab=961, tied=tied)
        for precision in ("fp32", "int8"):
            place = tmp_path / f"{tied}-{precision}"
            options = BuildOptions(
                target=str(tmp_path / f"{tied}"), out=place, precision=precision, max_len=64
            )
            build(options)
            sizes[tied, precision] = (place / "target/model.onnx.data").stat().st_size
    for precision, table in (("fp32", 961 * 64 * 4), ("int8", 961 * 64)):
        saved = sizes[False, precision] - sizes[True, precision]
        assert 0.9 * table <= saved < 1.2 * table


def test_the_border_is_what_the_manifest_says():
    bundle = tiny_bundle()
    for engine in bundle.engines:
        graph = graph_of(bundle, engine.role).graph
        assert [value.name for value in graph.input] == [spec.name for spec in engine.inputs]
        assert [value.name for value in graph.output] == [spec.name for spec in engine.outputs]
        expected = (
            graph_inputs(engine.role, engine.kv, "L"),
            graph_outputs(engine.role, engine.kv, "L", engine.model.output_vocab),
        )
        assert (engine.inputs, engine.outputs) == expected


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(("role", "name"), [("target", "Verify"), ("draft", "Sample")])
def test_our_operators_are_nodes_that_carry_their_functions(role, name, precision):
    bundle = tiny_bundle(precision=precision)
    model = graph_of(bundle, role)
    num_layers = engine_of(bundle, role).model.num_layers
    expected = {name: 1, "GroupedAttention": num_layers}
    if precision == "int8":
        expected["CodedProduct"] = 4 * num_layers + 1
    assert Counter(node.op_type for node in model.graph.node if node.domain == "ssd") == expected
    (node,) = [node for node in model.graph.node if node.op_type == name]
    assert {a.name for a in node.attribute} == {"plugin_namespace", "plugin_version"}
    assert {(f.domain, f.name) for f in model.functions} == {("ssd", each) for each in expected}
    assert {*engine_of(bundle, role).plugins} == {f"ssd::{each}" for each in expected}
    onnx.checker.check_model(str(bundle.path / role / "model.onnx"))


def test_a_draft_of_the_whole_vocabulary_maps_each_id_to_itself(tmp_path):
    make_llama(tmp_path / "checkpoint")
    request = request_for(tmp_path / "checkpoint", role="draft")
    build_graph(request).save(tmp_path)
    weights = onnx.load(tmp_path / "model.onnx").graph.initializer
    (ids_map,) = [each for each in weights if each.name == "vocab_map"]
    expected = np.arange(request.spec.vocab_size)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(ids_map), expected)


def test_nothing_copies_the_cache_on_onnxruntime():
    """A Slice or Concat of a cache would move it whole, every layer and step."""
    graph = graph_of(tiny_bundle()).graph
    caches = {name for value in (*graph.input, *graph.output) if "kv." in (name := value.name)}
    readers = {node.op_type for node in graph.node if caches & set(node.input)}
    assert readers == {"TensorScatter", "GroupedAttention"}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("int4", 4)])
def test_without_our_kernels_every_coded_layer_is_fused(tmp_path, precision, bits, tied):
    """An unfused layer dequantises its whole matrix at every step, 50 times slower."""
    import onnxruntime

    bundle = tiny_bundle(precision=precision, tied=tied)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*INT8_COMPUTE)
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(
        str(bundle.path / "target/model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    optimised = onnx.load(tmp_path / "optimised.onnx", load_external_data=False)
    kinds = [node.op_type for node in optimised.graph.node]
    fused = [node for node in optimised.graph.node if node.op_type == "MatMulNBits"]
    found = [{each.name: each.i for each in node.attribute}["bits"] for node in fused]
    assert found == [bits] * 4 * bundle.target.model.num_layers + [8]
    assert not {"MatMul", "Gemm"} & set(kinds)


def test_an_unused_tensor_fails_the_export_by_name(tmp_path):
    extra = {"model.layers.0.self_attn.sink.weight": np.ones(4, np.float32)}
    make_llama(tmp_path, tensors=extra)
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.self_attn\.sink\.weight"):
        build_graph(request_for(tmp_path))


def test_blocks_that_do_not_fit_are_refused_with_the_option_that_does(tmp_path):
    make_llama(tmp_path / "a", hidden=32)
    with pytest.raises(UnsupportedModelError, match="--block 32"):
        build_graph(request_for(tmp_path / "a", precision="int8", block=64))
    make_llama(tmp_path / "b", hidden=64, heads=3, kv_heads=3, head_dim=16)
    with pytest.raises(UnsupportedModelError, match=r"head_dim is 48, .* --precision fp32"):
        build_graph(request_for(tmp_path / "b", precision="int8", block=32))


def test_rotary_tables_reach_the_last_drafted_position(tmp_path):
    make_llama(tmp_path)
    request = request_for(tmp_path, limits=Limits(64, 1, 7, 3))
    model_positions = 64 + 2 * 7
    cos, sin = rotary_tables(request.spec, model_positions, np.dtype(np.float32))
    assert cos.shape == sin.shape == (model_positions, request.spec.head_dim // 2)
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=1e-6)
