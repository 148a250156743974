"""What TensorRT would leave out silently, or cannot take, is said before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.errors import BackendError, SsdError, UnsupportedModelError
from engines.profiles import ShapeProfile, Span
from engines.tensors import DType
from export.tensorrt.compile import compile_engine
from export.tensorrt.graph_file import read_graph
from export.tensorrt.network import parse
from export.tensorrt.vendor import Vendor, load
from plugins.vendor_log import logger_for
from tests.export.tensorrt.fake_compiler import FakeCompiler, parser_error
from tests.export.tensorrt.graphs import ATTENTION, DROPPED_OPERAND, PLUGIN, UNSUPPORTED, write

SPAN = Span(1, 2, 4)
PROFILE = ShapeProfile("step", SPAN, SPAN, SPAN, Span(1, 64, 128))


def standard(trt: FakeCompiler) -> Vendor:
    return Vendor(trt, "tensorrt", trt.__version__, is_rtx=False)


def compiled(vendor: Vendor, path: Path, *plugins: str) -> bytes:
    return compile_engine(
        vendor,
        path,
        profiles=[PROFILE],
        capabilities=["8.9"],
        precision="fp16",
        expected_plugins=plugins,
    )


def refused(kind: type[SsdError], vendor: Vendor, path: Path, *plugins: str) -> str:
    with pytest.raises(kind) as caught:
        compiled(vendor, path, *plugins)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_says_its_inputs_operators_plugins_and_caches(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path, ATTENTION))
    assert [spec.name for spec in graph.inputs] == ["q", "mask", "cache", "at", "new"]
    assert graph.inputs[1].dtype is DType.BOOL
    assert graph.inputs[1].shape == ("B", 1, "T", "L")
    assert graph.operators["Attention"] == "node.y"
    assert graph.caches == (("cache", "updated"),)
    assert graph.plugins == ()
    assert read_graph(write(tmp_path, PLUGIN)).plugins == ("ssd::Twice@1",)
    bf16 = read_graph(write(tmp_path, ATTENTION.replace("float16", "bfloat16")))
    assert bf16.inputs[0].dtype is DType.BFLOAT16


def test_a_file_that_is_no_graph_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x01\x02 neither\nnor" * 50)
    assert "is not an ONNX file" in refused(
        BackendError, standard(FakeCompiler()), tmp_path / "model.onnx"
    )
    assert "No such file" in refused(BackendError, standard(FakeCompiler()), tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "version", "least"),
    [
        ("tensorrt", "10.13.3.9", "10.15"),
        ("tensorrt", "10.14.1.48", "10.15"),
        ("tensorrt-rtx", "1.3.0.1", "1.4"),
    ],
)
def test_a_release_that_is_too_old_for_an_operator_says_which(
    tmp_path: Path, name: str, version: str, least: str
) -> None:
    """T2: the parser's own message would name a C++ file."""
    vendor = Vendor(FakeCompiler(version), name, version, is_rtx=name != "tensorrt")
    message = refused(UnsupportedModelError, vendor, write(tmp_path, ATTENTION))
    assert "TensorScatter (node node.updated) needs" in message
    assert f"{name} {least} or newer, {version} is installed" in message


def test_a_release_that_inlines_plugins_is_refused_only_where_one_is_wanted(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, PLUGIN)
    old = Vendor(FakeCompiler("1.6.1.120"), "tensorrt-rtx", "1.6.1.120", is_rtx=False)
    message = refused(UnsupportedModelError, old, path, "ssd::Twice@1")
    assert "ssd::Twice@1 (node node.y) needs tensorrt-rtx 1.7 or newer" in message
    assert compiled(old, path)


def test_attention_since_10_14_and_the_other_operators_since_10_15(tmp_path: Path) -> None:
    only_attention = DROPPED_OPERAND.replace("int64[B] lengths", "int64[B] unused")
    path = write(tmp_path, only_attention.replace(", , , lengths", ", unused"))
    assert compiled(standard(FakeCompiler("10.14.1.48")), path)
    message = refused(UnsupportedModelError, standard(FakeCompiler("10.13.3.9")), path)
    assert "Attention (node node.y) needs tensorrt 10.14" in message


MIXED_TYPES = (
    "Invalid Node - b\nITensor::getDimensions: Error Code 4: API Usage Error (b: must have same "
    "input types. In validateTypes at /_src/a.cpp:40)\n[checkMacros.cpp] Error Code 1"
)
PARSER_ERRORS = [
    (("Bernoulli", "n", "false"), "operator Bernoulli (node n): it is not supported"),
    (
        ("Attention", "a", 'softcap == 0.0 && "Setting softcap is not supported."'),
        "operator Attention (node a): Setting softcap is not supported.",
    ),
    (
        ("Add", "b", MIXED_TYPES),
        "operator Add (node b): b: must have same input types",
    ),
    (
        ("Add", "c", "Assertion failed: (ctx->count(name)): Node input was not registered."),
        "operator Add (node c): Node input was not registered.",
    ),
    (("", "", "Assertion failed: stat(file): Input file cannot be found"), "file cannot be found"),
]


@pytest.mark.parametrize(("error", "words"), PARSER_ERRORS)
def test_a_parsers_error_names_operator_and_node_without_its_cplusplus(
    tmp_path: Path, error: tuple[str, str, str], words: str
) -> None:
    trt = FakeCompiler()
    trt.errors = [parser_error(*error)]
    kind = UnsupportedModelError if error[0] else BackendError
    message = refused(kind, standard(trt), write(tmp_path, ATTENTION))
    assert message.endswith(words)


def test_an_input_that_goes_nowhere_is_named(tmp_path: Path) -> None:
    trt = FakeCompiler()
    path = write(tmp_path, DROPPED_OPERAND)
    assert compiled(standard(trt), path)
    trt.drops = {("Attention", 6)}
    assert "ignores the graph's input lengths" in refused(
        UnsupportedModelError, standard(trt), path
    )


def test_a_plugin_that_became_its_function_is_an_error(tmp_path: Path) -> None:
    trt = FakeCompiler()
    path = write(tmp_path, PLUGIN)
    assert compiled(standard(trt), path, "ssd::Twice@1")
    trt.inlines = {"Twice"}
    message = refused(BackendError, standard(trt), path, "ssd::Twice@1")
    assert "inlined node node.y instead of taking the plugin ssd::Twice@1" in message
    assert compiled(standard(trt), path), "without a plugin to expect, the function will do"


def test_a_plugin_that_the_graph_does_not_have_is_an_error(tmp_path: Path) -> None:
    message = refused(
        BackendError, standard(FakeCompiler()), write(tmp_path, PLUGIN), "ssd::Thrice@1"
    )
    assert "has no node for the plugin ssd::Thrice@1; it has ssd::Twice@1" in message


def test_a_cache_that_would_be_copied_is_an_error(tmp_path: Path) -> None:
    trt = FakeCompiler()
    trt.inlines = {"TensorScatter"}
    message = refused(BackendError, standard(trt), write(tmp_path, ATTENTION))
    assert "would copy the cache cache" in message


# With TensorRT-RTX itself. -----------------------------------------------------------------------


@pytest.mark.rtx
def test_rtx_compiles_a_layer_of_a_decoder(tmp_path: Path) -> None:
    assert compiled(load("tensorrt-rtx"), write(tmp_path, ATTENTION))


@pytest.mark.rtx
def test_rtx_drops_an_operand_and_the_guard_sees_it(tmp_path: Path) -> None:
    """Its parser takes nonpad_kv_seqlen and wires it to nothing: attention over padding."""
    message = refused(UnsupportedModelError, load("tensorrt-rtx"), write(tmp_path, DROPPED_OPERAND))
    assert "ignores the graph's input lengths" in message


@pytest.mark.rtx
def test_rtx_inlines_an_unregistered_plugin_and_the_guard_sees_it(tmp_path: Path) -> None:
    path = write(tmp_path, PLUGIN)
    message = refused(BackendError, load("tensorrt-rtx"), path, "ssd::Twice@1")
    assert "no plugin of that name and version is registered" in message


@pytest.mark.rtx
def test_rtx_names_the_operator_that_it_does_not_take(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = refused(UnsupportedModelError, load("tensorrt-rtx"), write(tmp_path, UNSUPPORTED))
    assert "does not take the operator Bernoulli (node node.y): it is not supported" in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.rtx
@pytest.mark.parametrize(("dtype", "decomposable"), [("float16", False), ("float", True)])
def test_only_float32_attention_may_be_built_of_single_steps(
    tmp_path: Path, dtype: str, decomposable: bool
) -> None:
    """Decomposed fp16 attention would be a slow engine instead of an error."""
    vendor = load("tensorrt-rtx")
    trt = vendor.module
    graph = read_graph(write(tmp_path, ATTENTION.replace("float16", dtype)))
    logger, _ = logger_for(trt)
    network: Any = parse(vendor, trt.Builder(logger), logger, graph, ())
    kinds = [network.get_layer(index) for index in range(network.num_layers)]
    (layer,) = [each for each in kinds if each.type == trt.LayerType.ATTENTION_INPUT]
    layer.__class__ = trt.IAttentionInputLayer
    assert layer.attention.decomposable is decomposable
