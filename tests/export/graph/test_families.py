"""Every model family against transformers, which reads the same folder: prompts, verification of
several rows, single steps and branches, all beyond the sliding window where there is one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engines.bundle import Bundle
from engines.errors import CheckpointError, UnsupportedModelError
from export.build.build import build
from export.build.options import BuildOptions
from export.check.reference import load_reference
from export.checkpoint.api import open_checkpoint
from export.graph.api import GraphRequest, build_graph
from runtime.backends.api import CallShape
from runtime.backends.cpu_kernels import INT8_COMPUTE
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout, branch_mask
from runtime.llm import LLM
from runtime.workers.calls import feed_one, fill_trunk
from runtime.workers.prefill import prefill
from tests.helpers.families import CONFIGS, WINDOW, make_model
from tests.helpers.session_folder import session_folder
from tests.helpers.tiny_bundle import open_session

NEW, BRANCHES = 5, 3
TOLERANCE = 2e-4
"""Of logits up to 20: Qwen2's scores are hundreds, which float32 rounds to 1e-5 of theirs."""
LENGTHS = (33, 110)


@cache
def bundle_of(name: str) -> Bundle:
    """A checkpoint as target and as its own draft, which has scratch rows and branches."""
    folder = session_folder("family")
    make_model(folder / "model", name)
    options = BuildOptions(
        target=str(folder / "model"),
        draft=str(folder / "model"),
        out=folder / "bundle",
        precision="fp32",
        max_len=160,
        max_batch=2,
        num_draft=4,
        max_branches=BRANCHES,
    )
    return build(options).bundle


@cache
def transformers_model(name: str, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    folder = bundle_of(name).path.parent / "model"
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def expected_logits(name: str, tokens: list[int], dtype: str = "float64") -> np.ndarray:
    """Logits of every position [T, V]. In float32 they would be as far off as an engine's."""
    import torch

    with torch.inference_mode():
        model = transformers_model(name, dtype)
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    array: np.ndarray = logits.numpy()
    return array


def random_texts(count: int, length: int) -> list[list[int]]:
    texts: list[list[int]] = (
        np.random.default_rng(length).integers(0, 320, (count, length)).tolist()
    )
    return texts


@pytest.fixture
def device() -> Any:
    device = HostDevice()
    yield device
    device.close()


@pytest.mark.torch
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", CONFIGS)
def test_verified_rows_match_transformers(name: str, length: int, device: HostDevice) -> None:
    """X1, X2, X3, X6, X13, X15: two texts with a past, five new tokens each."""
    bundle = bundle_of(name)
    texts = random_texts(2, length)
    session = open_session(bundle, device)
    layout = SlotLayout(bundle.target.kv, 0)
    for slot, tokens in enumerate(texts):
        prefill(session, layout, slot, tokens[:-NEW])
    session.bind_rows(layout.rows_for(length))
    step = session.prepare(CallShape(0, 2, NEW, NEW))
    for slot, tokens in enumerate(texts):
        fill_trunk(step, slot, layout, length - NEW, tokens[-NEW:])
        step.logit_rows[slot] = range(NEW)
        step.num_draft[slot] = 0
    step.run()
    expected = np.stack([expected_logits(name, tokens)[-NEW:] for tokens in texts])
    assert np.abs(step.logits - expected).max() < TOLERANCE
    assert np.abs(expected).max() > 1.0, "the logits are not tiny themselves"


@pytest.mark.torch
@pytest.mark.parametrize("name", CONFIGS)
def test_single_steps_match_transformers(name: str, device: HostDevice) -> None:
    """Plain decoding across the edge of the window, a token a call."""
    bundle = bundle_of(name)
    (tokens,) = random_texts(1, WINDOW + 4)
    session = open_session(bundle, device)
    layout = SlotLayout(bundle.target.kv, 0)
    expected = expected_logits(name, tokens)
    for position, token in enumerate(tokens):
        step = feed_one(session, layout, 0, position, [token])
        assert np.abs(step.logits[0, 0] - expected[position]).max() < TOLERANCE, position


@pytest.mark.torch
@pytest.mark.parametrize("name", CONFIGS)
def test_branches_in_scratch_rows_match_transformers(name: str, device: HostDevice) -> None:
    """A window must move with each branch, whose own rows lie out of order, before the text."""
    bundle = bundle_of(name)
    assert bundle.draft is not None
    (tokens,) = random_texts(1, 40)
    ends = np.array([40, 38, 35])  # what each branch knows of the text
    drafted = np.random.default_rng(1).integers(0, 320, (4, BRANCHES))
    session = open_session(bundle, device, "draft")
    layout = SlotLayout(bundle.draft.kv, BRANCHES)
    prefill(session, layout, 0, tokens)
    session.bind_rows(layout.rows_for(len(tokens)))
    for depth in range(4):
        step = session.prepare(CallShape(0, 1, BRANCHES, BRANCHES))
        step.tokens[0] = drafted[depth]
        step.positions[0] = ends + depth
        step.write_at[0] = layout.scratch_row(depth)
        branch_mask(step.mask[0], layout, ends, depth)
        step.logit_rows[0] = range(BRANCHES)
        step.run()
        for branch, end in enumerate(ends):
            text = tokens[:end] + drafted[: depth + 1, branch].tolist()
            difference = step.logits[0, branch] - expected_logits(name, text)[-1]
            assert np.abs(difference).max() < TOLERANCE, (depth, branch)


@pytest.mark.torch
@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_rebuilt_from_a_spec_is_transformers_own(name: str) -> None:
    """``verify`` compares with it, for a GGUF file too: a field it forgets would pass unseen."""
    (tokens,) = random_texts(1, 60)
    rebuilt = load_reference(open_checkpoint(bundle_of(name).path.parent / "model"))
    difference = rebuilt.logits(tokens) - expected_logits(name, tokens, "float32")
    assert np.abs(difference).max() < 1e-5


def graph_of(
    folder: Path,
    *,
    role: str = "target",
    precision: str = "fp32",
    backend: str = "onnxruntime",
    **limits: int,
) -> onnx.ModelProto:
    """The graph of a checkpoint that ``make_model`` wrote to ``folder``, without weights."""
    source = open_checkpoint(folder)
    sizes = {"max_len": 160, "num_draft": 4, "max_branches": BRANCHES, **limits}
    options = BuildOptions("t", backend=backend, precision=precision, block=32, **sizes)
    request = GraphRequest(
        role=role,
        spec=source.spec,
        tensor=source.tensor,
        names=source.tensor_names(),
        limits=options.limits,
        kv=options.kv_layout(role, source.spec),
        precision=precision,
        block=options.block,
        backend=backend,
    )
    build_graph(request).save(folder)
    return onnx.load(folder / "model.onnx", load_external_data=False)


def masks_of(model: onnx.ModelProto) -> list[str]:
    """What the attention of each layer is given as its mask."""
    kinds = ("Attention", "GroupedAttention")
    return [node.input[3] for node in model.graph.node if node.op_type in kinds]


def test_local_layers_share_one_window_and_the_others_have_none(tmp_path: Path) -> None:
    """X3, X15: opset 24 has no window attribute, so it has to be a mask."""
    model = graph_of(make_model(tmp_path, "gemma3"))
    assert masks_of(model) == ["window.mask.grouped"] * 2 + ["mask.grouped"]
    assert [node.op_type for node in model.graph.node].count("And") == 1


@pytest.mark.parametrize(("name", "tables"), [("qwen2-window", 2), ("gemma3", 4), ("mistral", 2)])
def test_layers_that_rotate_alike_share_their_tables(
    tmp_path: Path, name: str, tables: int
) -> None:
    model = graph_of(make_model(tmp_path, name))
    assert sum(each.name.startswith("rope.") for each in model.graph.initializer) == tables


@pytest.mark.parametrize(("max_len", "has_window"), [(240, True), (160, False)])
def test_a_window_that_no_call_reaches_past_is_left_out(
    tmp_path: Path, max_len: int, has_window: bool
) -> None:
    """The window of 200 positions costs nothing in an engine that is built for 160."""
    make_model(tmp_path, "mistral", sliding_window=200)
    masks = masks_of(graph_of(tmp_path, max_len=max_len))
    assert masks == ["window.mask.grouped" if has_window else "mask.grouped"] * 2


def test_a_branch_longer_than_the_window_is_refused(tmp_path: Path) -> None:
    """Scratch rows are taken to be inside it."""
    make_model(tmp_path, "mistral", sliding_window=3)
    graph_of(tmp_path)  # a target has no scratch rows
    with pytest.raises(UnsupportedModelError, match="--num-draft 3"):
        graph_of(tmp_path, role="draft")


@pytest.mark.parametrize(
    ("name", "changes", "left"),
    [
        ("llama-bias", {"attention_bias": False}, "bias"),
        (
            "gemma3",
            {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"},
            "feedforward_layernorm",
        ),
    ],
)
def test_no_weight_of_a_family_is_dropped(
    tmp_path: Path, name: str, changes: dict[str, Any], left: str
) -> None:
    """X2: a config that says less than the weights would give a graph that is almost right."""
    make_model(tmp_path, name)
    config = {**CONFIGS[name], **changes, "tie_word_embeddings": name == "gemma3"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"no place in a .* graph, first .*{left}"):
        graph_of(tmp_path)


@pytest.mark.parametrize("name", ["gemma3", "phi3", "qwen2"])
def test_every_int8_layer_of_a_family_runs_on_the_8_bit_kernel(tmp_path: Path, name: str) -> None:
    """A bias, a Gelu or a scaled embedding must not keep ONNX Runtime from fusing the products."""
    import onnxruntime

    make_model(tmp_path, name)
    graph_of(tmp_path, precision="int8")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*INT8_COMPUTE)
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    optimised = onnx.load(tmp_path / "optimised.onnx", load_external_data=False)
    kinds = [node.op_type for node in optimised.graph.node]
    assert kinds.count("MatMulNBits") == 4 * CONFIGS[name]["num_hidden_layers"] + 1
    assert kinds.count("MatMul") == 0


def test_a_tied_scaled_embedding_is_stored_once(tmp_path: Path) -> None:
    """X8, X10: Gemma scales what it looks up, not what the head multiplies with."""
    sizes = {"vocab_size": 4000, "hidden_size": 64}
    saved = []
    for tied in (True, False):
        folder = make_model(tmp_path / str(tied), "gemma3", tie_word_embeddings=tied, **sizes)
        graph_of(folder)
        assert {path.name for path in folder.glob("model.onnx*")} == {
            "model.onnx",
            "model.onnx.data",
        }
        saved.append((folder / "model.onnx.data").stat().st_size)
    table = 4000 * 64 * 4
    assert table <= saved[1] - saved[0] < 1.02 * table


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_gemma_is_refused_where_its_hidden_states_overflow(tmp_path: Path, precision: str) -> None:
    """Infinite hidden states become NaN in the next norm, and every token the same."""
    make_model(tmp_path, "gemma3")
    with pytest.raises(UnsupportedModelError, match="hidden states of Gemma 3"):
        graph_of(tmp_path, precision=precision, backend="tensorrt-rtx")
    graph_of(tmp_path, precision="bf16", backend="tensorrt-rtx")


def test_a_bfloat16_checkpoint_runs_on_the_cpu(tmp_path: Path, device: HostDevice) -> None:
    """X12: ONNX Runtime's CPU kernels have no bfloat16, so its engines are float32."""
    folder = make_model(tmp_path / "model", "mistral", dtype="BF16")
    out = tmp_path / "bundle"
    bundle = build(BuildOptions(str(folder), out=out, precision="fp32", max_len=64)).bundle
    session = open_session(bundle, device)
    (tokens,) = random_texts(1, 8)
    step = feed_one(session, SlotLayout(bundle.target.kv, 0), 0, 0, tokens)
    assert np.isfinite(step.logits).all()
    assert np.abs(step.logits).max() > 1.0
    types = {w.data_type for w in onnx.load(out / "target/model.onnx").graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in types


@pytest.mark.parametrize("name", ["gemma3", "mistral", "qwen2-yarn", "phi3-long"])
def test_speculation_says_what_plain_decoding_says(name: str) -> None:
    """A draft that is the target is always right, and its branches are always taken: each commits
    rows from scratch to the trunk, where the window counts by row. One bit off, and either the
    text differs or drafts are refused."""
    found = {}
    for mode in ("ar", "ssd"):
        with LLM.open(bundle_of(name).path, mode=mode) as llm:
            found[mode] = llm.generate([7, 8, 9, 10], max_tokens=60)
    assert found["ssd"].token_ids == found["ar"].token_ids
    assert len(found["ar"].token_ids) > 3 * WINDOW
    assert found["ssd"].stats.acceptance_length > 3.5
