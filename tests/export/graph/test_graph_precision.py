"""Every precision: what is stored, and that the graph computes what the weights say."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from engines.errors import UnsupportedModelError, UsageError
from engines.manifest import DRAFT, TARGET
from engines.tensors import DType
from export.build.options import BuildOptions
from export.checkpoint.api import open_checkpoint
from export.graph.api import GraphRequest, build_graph
from export.graph.precision import BACKENDS, names_for, precision_for
from export.graph.quantize import quantize
from tests.helpers.checkpoints import make_llama, make_qwen3

ROWS, TOKENS, BATCH = 32, 6, 2
NUMPY = {
    DType.FLOAT16: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT32: np.dtype(np.float32),
}
TENSORRT = sorted(names_for("tensorrt-rtx"))


def holding(source, part: str, value: float):
    """``source.tensor`` with one value of one weight changed."""

    def tensor(name: str) -> np.ndarray:
        weight = source.tensor(name).copy()
        if name.endswith(part):
            weight.flat[7] = value
        return weight

    return tensor


@pytest.mark.parametrize(
    "part", ["layers.1.mlp.down_proj.weight", "embed_tokens.weight", "norm.weight"]
)
@pytest.mark.parametrize("value", [1e6, -1e30])
@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_a_weight_that_float16_cannot_hold_is_refused(
    checkpoint, tmp_path: Path, part: str, value: float, precision: str
) -> None:
    """As codes it got an infinite scale, or was infinite when it was multiplied out."""
    source = checkpoint()
    words = r"weight holds 1e\+\d+, float16 ends at 65504; build with --precision bf16 or fp32"
    with pytest.raises(UnsupportedModelError, match=words):
        build(tmp_path, source, precision, tensor=holding(source, part, value))


def test_a_weight_that_bfloat16_cannot_hold_is_refused(checkpoint, tmp_path: Path) -> None:
    source = checkpoint()
    tensor = holding(source, "down_proj.weight", 3.4e38)
    with pytest.raises(UnsupportedModelError, match=r"bfloat16 ends at .*--precision fp32$"):
        build(tmp_path, source, "bf16", tensor=tensor)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Opens tiny checkpoints, each written once: ``checkpoint(family, tied)``."""
    opened = {}

    def get(family: str = "llama", tied: bool = True):
        if (family, tied) not in opened:
            folder = tmp_path_factory.mktemp(f"{family}-{tied}")
            make = {"llama": make_llama, "qwen3": make_qwen3}[family]
            make(folder, hidden=64, intermediate=128, tied=tied, seed=5, tokenizer=False)
            opened[family, tied] = open_checkpoint(folder)
        return opened[family, tied]

    return get


def build(folder: Path, source, precision: str, role: str = TARGET, **changes):
    options = BuildOptions(
        "t", precision=precision, backend="tensorrt-rtx", max_len=60, num_draft=2, max_branches=2
    )
    fields = {
        "role": role,
        "spec": source.spec,
        "tensor": source.tensor,
        "names": source.tensor_names(),
        "limits": options.limits,
        "kv": options.kv_layout(role, source.spec),
        "precision": precision,
        "block": 32,
        "backend": "tensorrt-rtx",
        "vocab_map": np.arange(source.spec.vocab_size)[::-1] if role == DRAFT else None,
    }
    result = build_graph(GraphRequest(**{**fields, **changes}))
    folder.mkdir(exist_ok=True)
    result.save(folder)
    return result


def run(folder: Path, result, *, reference: bool = False):
    """All outputs by name for one call on empty caches, in ONNX Runtime or in onnx's evaluator."""
    random = np.random.default_rng(1)
    sizes = {"B": BATCH, "T": TOKENS, "R": TOKENS, "L": ROWS}
    feed = {}
    for spec in result.inputs:
        shape = [sizes.get(dim, dim) for dim in spec.shape]
        value = {
            "tokens": random.integers(0, 300, shape),
            "positions": np.broadcast_to(np.arange(TOKENS), (BATCH, TOKENS)),
            "mask": np.broadcast_to(np.tri(TOKENS, ROWS), (BATCH, 1, TOKENS, ROWS)),
            "logit_rows": np.broadcast_to(np.arange(TOKENS), (BATCH, TOKENS)),
        }.get(spec.name, np.zeros(shape))
        dtype = NUMPY.get(spec.dtype) or spec.dtype.numpy
        feed[spec.name] = np.ascontiguousarray(value.astype(dtype))
    path = str(folder / "model.onnx")
    if reference:
        outputs = ReferenceEvaluator(path).run(None, feed)
    else:
        # As written: fused kernels would round the activations to 8 bits as well.
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, feed)
    return dict(zip([spec.name for spec in result.outputs], outputs, strict=True))


def as_stored(source, precision: str):
    """``source.tensor`` rounded as the engine stores it, by a formula of this test's own."""
    form = precision_for("tensorrt-rtx", precision)
    dtype = NUMPY[form.activation]

    def tensor(name: str) -> np.ndarray:
        weight = source.tensor(name)
        tables = ("model.embed_tokens.weight", "lm_head.weight")
        coding = form.tables if name in tables else form.layers
        if weight.ndim == 1 or coding is None:
            return weight.astype(dtype).astype(np.float32)
        parts = weight.reshape(len(weight), -1, 32 if coding.blocks else weight.shape[1])
        step = np.abs(parts).max(axis=2, keepdims=True) / {8: 127, 4: 7}[coding.bits]
        step = step.astype(dtype).astype(np.float32)
        return (np.rint(parts / step) * step).reshape(weight.shape)

    return tensor


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("precision", TENSORRT)
def test_the_graph_computes_with_the_weights_as_stored(
    tmp_path, checkpoint, precision, family, tied
):
    """Scales on the wrong axis, or a table laid out the wrong way, would build all the same.

    bf16 in onnx's own evaluator, since ONNX Runtime has no bfloat16 products.
    """
    source = checkpoint(family, tied)
    is_bf16 = precision == "bf16"
    result = build(tmp_path / "a", source, precision)
    found = run(tmp_path / "a", result, reference=is_bf16)
    exact = build(tmp_path / "b", source, "fp32", tensor=as_stored(source, precision))
    expected = run(tmp_path / "b", exact)
    error = found["logits"].astype(np.float64) - expected["logits"]
    relative = np.linalg.norm(error) / np.linalg.norm(expected["logits"])
    assert found["logits"].dtype == np.float32
    assert relative < {"fp32": 1e-6, "bf16": 0.03}.get(precision, 0.003)
    key = found["kv.1.key.next"].astype(np.float64)
    assert np.abs(key - expected["kv.1.key.next"]).max() < (0.2 if is_bf16 else 0.02)
    assert np.abs(key[:, :, :TOKENS]).min() > 0
    assert not key[:, :, TOKENS:].any()


def with_offsets(source):
    """``source.tensor`` rounded as ONNX Runtime's int4 engine stores it, by another formula."""

    def tensor(name: str) -> np.ndarray:
        weight = source.tensor(name)
        if weight.ndim == 1:
            return weight
        parts = weight.reshape(len(weight), -1, 32)
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            step = np.abs(parts).max(axis=2, keepdims=True) / np.float32(127)
            return (np.rint(parts / step) * step).reshape(weight.shape)
        low = np.minimum(parts.min(axis=2, keepdims=True), 0)
        step = (np.maximum(parts.max(axis=2, keepdims=True), 0) - low) / np.float32(15)
        zero = np.rint(-low / step)
        codes = np.clip(np.rint(parts / step) + zero, 0, 15)
        return ((codes - zero) * step).astype(np.float32).reshape(weight.shape)

    return tensor


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_4_bit_weights_with_offsets_are_computed_with_as_stored(tmp_path, checkpoint, family, tied):
    source = checkpoint(family, tied)
    options = BuildOptions("t", precision="int4", max_len=60, num_draft=2, max_branches=2)
    changes = {"backend": "onnxruntime", "kv": options.kv_layout(TARGET, source.spec)}
    result = build(tmp_path / "a", source, "int4", **changes)
    exact = build(tmp_path / "b", source, "fp32", tensor=with_offsets(source), **changes)
    found, expected = run(tmp_path / "a", result), run(tmp_path / "b", exact)
    error = np.linalg.norm(found["logits"] - expected["logits"])
    assert error < 1e-5 * np.linalg.norm(expected["logits"])


@pytest.mark.parametrize("precision", TENSORRT)
def test_the_choice_is_the_argmax_of_the_logits_given_out(tmp_path, checkpoint, precision):
    """Nodes that judge by other logits than those at the border would disagree with the host."""
    source = checkpoint()
    result = build(tmp_path, source, precision, DRAFT)
    found = run(tmp_path, result, reference=precision == "bf16")
    best = found["logits"].argmax(-1)
    np.testing.assert_array_equal(found["sample"], source.spec.vocab_size - 1 - best)


@pytest.mark.parametrize("precision", TENSORRT)
def test_everything_but_codes_and_ids_has_the_activations_type(tmp_path, checkpoint, precision):
    result = build(tmp_path, checkpoint("qwen3", True), precision)
    activation = precision_for("tensorrt-rtx", precision).activation
    model = onnx.load(tmp_path / "model.onnx")
    kinds = {
        tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type)
        for tensor in model.graph.initializer
    }
    floats = {kind for kind in kinds.values() if "FLOAT" in kind}
    assert floats == {activation.name.replace("FLOAT32", "FLOAT")}
    caches = [spec for spec in (*result.inputs, *result.outputs) if spec.name.startswith("kv.")]
    assert {spec.dtype for spec in caches} == {activation}
    assert next(spec for spec in result.outputs if spec.name == "logits").dtype is DType.FLOAT32
    codes = {name: kind for name, kind in kinds.items() if name.endswith(".codes")}
    expected = {"int8": {"INT8"}, "int4": {"INT4", "INT8"}}.get(precision, set())
    assert set(codes.values()) == expected
    onnx.checker.check_model(str(tmp_path / "model.onnx"))


def test_4_bit_codes_are_packed_in_pairs_and_read_back(tmp_path, checkpoint):
    build(tmp_path, checkpoint(), "int4")
    model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    (entry,) = [t for t in model.graph.initializer if t.name == "layer.0.mlp.down.codes"]
    place = {item.key: item.value for item in entry.external_data}
    assert int(place["length"]) == 128 * 64 // 2
    onnx.load_external_data_for_model(model, str(tmp_path))
    (entry,) = [t for t in model.graph.initializer if t.name == "layer.0.mlp.down.codes"]
    weight = checkpoint().tensor("model.layers.0.mlp.down_proj.weight").T
    codes, _ = quantize(np.ascontiguousarray(weight), 32, 7, np.dtype(np.float16))
    np.testing.assert_array_equal(numpy_helper.to_array(entry).astype(np.int8), codes)


@pytest.mark.parametrize("precision", TENSORRT)
def test_a_tied_table_is_stored_once(tmp_path, precision):
    sizes = {}
    for tied in (True, False):
        folder = tmp_path / f"{tied}"
        make_llama(folder, hidden=64, vocab=4000, tied=tied, tokenizer=False)
        build(folder, open_checkpoint(folder), precision)
        sizes[tied] = (folder / "model.onnx.data").stat().st_size
    itemsize = {"fp32": 4, "fp16": 2, "bf16": 2}.get(precision, 1)
    assert 1 <= (sizes[False] - sizes[True]) / (4000 * 64 * itemsize) < 1.1


def test_a_weight_beyond_float16_is_refused_by_name(tmp_path, checkpoint):
    source = checkpoint()

    def tensor(name: str) -> np.ndarray:
        weight = source.tensor(name)
        if name == "model.layers.1.mlp.up_proj.weight":
            weight[0, 0] = 70000
        return weight

    with pytest.raises(UnsupportedModelError, match=r"layer\.1\.mlp.*70000.*--precision bf16"):
        build(tmp_path, source, "fp16", tensor=tensor)
    build(tmp_path, source, "bf16", tensor=tensor)


def test_blocks_that_do_not_fit_a_layer_are_refused_with_what_does(tmp_path):
    for hidden, block, fix in ((96, 64, "--block 32"), (80, 32, "--precision int8")):
        folder = tmp_path / f"{hidden}"
        make_llama(folder, hidden=hidden, heads=4, kv_heads=2, head_dim=16, tokenizer=False)
        with pytest.raises(UnsupportedModelError, match=fix):
            build(folder, open_checkpoint(folder), "int4", block=block)
        build(folder, open_checkpoint(folder), "int8", block=block)


def test_each_backend_says_which_precisions_fit():
    assert BACKENDS == ("onnxruntime", "tensorrt", "tensorrt-rtx")
    assert names_for("onnxruntime") == ("int8", "fp32", "int4")
    assert names_for("tensorrt") == names_for("tensorrt-rtx")
    assert names_for("tensorrt")[0] == "fp16"
    with pytest.raises(UsageError, match="fp16 does not fit --backend onnxruntime; choose int8, f"):
        precision_for("onnxruntime", "fp16")
    with pytest.raises(UsageError, match="fp8 is unknown; choose fp16, bf16, fp32, int8 or int4"):
        precision_for("tensorrt", "fp8")
    with pytest.raises(UsageError, match="abacus is unknown"):
        precision_for("abacus", "fp32")
