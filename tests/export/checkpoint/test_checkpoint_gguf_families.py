"""GGUF files of every architecture against the Hugging Face folder that they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.rope import LinearRope, LongRope
from tests.helpers import k_quants
from tests.helpers.checkpoints import make_gguf
from tests.helpers.families import CONFIGS, make_model

MADE: dict[str, dict[str, Any]] = {
    "llama-bias": {},
    "llama-linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
    "mistral": {"attention.sliding_window": 12},
    "qwen2": {},
    "qwen2-yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    },
    "qwen3-yarn": {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_beta_fast": 16.0,
    },
    "gemma3-linear-softcap": {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "attention.sliding_window": 12,
        "attention.sliding_window_pattern": 3,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {"rope.freq_base": 1e6, "attention.sliding_window": 12},
    "phi3": {"attention.sliding_window": 13},
    "phi3-long": {
        "rope.scaling.original_context_length": 256,
        "attention.sliding_window": 2048,
    },
}
"""Metadata beyond the common ones, without the architecture's name."""
WRITERS = {str: "add_string", int: "add_uint32", float: "add_float32", list: "add_array"}
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}


def convert(
    folder: Path,
    name: str,
    metadata: Mapping[str, Any] | None = None,
    dropped: str | None = None,
    **changes: Any,
) -> tuple[Path, Checkpoint]:
    """The checkpoint ``name`` as llama.cpp's converter writes it, and the folder it is made from.

    ``metadata`` adds to that of ``MADE``, ``dropped`` leaves a tensor out, ``changes`` are of
    the config. Names come from the table of the ``gguf`` library; rotary rows are reordered for
    llama alone, and Gemma's norms get their 1.
    """
    from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map

    if name.startswith("gemma3"):  # the file cannot say otherwise
        changes = {"query_pre_attn_scalar": 32, **changes}
    config = {**CONFIGS[name], **changes}
    source = open_checkpoint(make_model(folder / "hf", name, **changes))
    spec = source.spec
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    names = get_tensor_name_map(
        next(key for key, value in MODEL_ARCH_NAMES.items() if value == arch), spec.num_layers
    )
    path = folder / "model.gguf"
    writer = GGUFWriter(path, arch)
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.rotary_dim or spec.head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in {**MADE[name], **(metadata or {})}.items():
        kind = WRITERS[type(value)]
        getattr(writer, kind)(f"{arch}.{key}", value)
    for hf_name in source.tensor_names():
        array = source.tensor(hf_name)
        for part, heads in (("q_proj", spec.num_heads), ("k_proj", spec.num_kv_heads)):
            if arch == "llama" and part in hf_name:
                halves = array.reshape(heads, 2, -1, *array.shape[1:])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        if arch == "gemma3" and hf_name.endswith("norm.weight"):
            array = array + 1
        writer.add_tensor(names.get_name(hf_name, (".weight", ".bias")), array)
    if isinstance(spec.rope_scaling, LongRope):
        short = np.array(spec.rope_scaling.short_factors, np.float32)
        for tensor, factors in (("short", short), ("long", 4 * short)):
            if dropped != f"rope_factors_{tensor}.weight":
                writer.add_tensor(f"rope_factors_{tensor}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, source


@pytest.mark.parametrize("name", [name for name in MADE if name != "gemma3"])
def test_a_gguf_file_is_the_folder_it_was_made_from(tmp_path: Path, name: str) -> None:
    path, source = convert(tmp_path, name)
    found = open_checkpoint(path)
    assert found.spec == source.spec
    assert set(found.tensor_names()) == set(source.tensor_names())
    for tensor in source.tensor_names():
        expected = source.tensor(tensor)
        # (w + 1) - 1 rounds once.
        atol = 1e-6 if name.startswith("gemma3") and tensor.endswith("norm.weight") else 0.0
        np.testing.assert_allclose(
            found.tensor(tensor), expected, rtol=0, atol=atol, err_msg=tensor
        )


def test_a_stored_attention_factor_is_taken(tmp_path: Path) -> None:
    path, source = convert(tmp_path, "phi3-long", {"rope.scaling.attn_factor": 1.5})
    rope = source.spec.rope_scaling
    assert isinstance(rope, LongRope)
    assert open_checkpoint(path).spec.rope_scaling == replace(rope, attention_factor=1.5)


def test_gemma_27b_scales_by_the_share_of_the_width(tmp_path: Path) -> None:
    """The file does not say so: llama.cpp knows the model by its 62 layers."""
    sizes = {"num_hidden_layers": 62, "hidden_size": 32, "intermediate_size": 32}
    path, _ = convert(tmp_path, "gemma3", **sizes)
    spec = open_checkpoint(path).spec
    assert (spec.query_scalar, spec.head_dim) == (8, 32)
    assert spec.local_layers[:7] == (True, True, True, True, True, False, True)


def test_a_pattern_of_windows_in_another_form_is_refused(tmp_path: Path) -> None:
    """A list would be passed over, and the usual pattern taken in its place."""
    pattern = {"attention.sliding_window_pattern": [True, False, True]}
    path, _ = convert(tmp_path, "gemma3", pattern)
    with pytest.raises(CheckpointError, match="sliding_window_pattern must be a whole number"):
        open_checkpoint(path)


def test_long_factors_alone_are_refused(tmp_path: Path) -> None:
    """Left aside, the model would be taken for one without any scaling."""
    path, _ = convert(tmp_path, "phi3-long", dropped="rope_factors_short.weight")
    with pytest.raises(CheckpointError, match=r"without rope_factors_short\.weight"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"rope.scaling.factor": 4.0}, LinearRope(4.0)),
        ({"rope.scale_linear": 4.0}, LinearRope(4.0)),
        ({"rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
    ],
)
def test_a_factor_of_no_stated_type_is_linear(
    tmp_path: Path, metadata: dict[str, Any], expected: LinearRope | None
) -> None:
    """X6: llama.cpp scales positions by it; passed over, long texts are garbled."""
    path, _ = convert(tmp_path, "qwen2", metadata)
    assert open_checkpoint(path).spec.rope_scaling == expected


@pytest.mark.parametrize(
    ("name", "metadata", "named"),
    [
        ("qwen2-yarn", {"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor other than 1"),
        ("qwen2-yarn", {"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ("qwen2", {"rope.scaling.type": "longrope"}, "rope scaling type 'longrope'"),
        ("qwen2", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("qwen2", {"expert_count": 8}, "mixture-of-experts"),
    ],
)
def test_what_has_no_place_is_refused_by_name(
    tmp_path: Path, name: str, metadata: dict[str, Any], named: str
) -> None:
    path, _ = convert(tmp_path, name, metadata)
    with pytest.raises(UnsupportedModelError, match=named):
        open_checkpoint(path)


def test_a_bias_of_one_projection_alone_is_refused(tmp_path: Path) -> None:
    """X2: a bias that is found must not be dropped, nor its missing sisters be taken for zeros."""
    path = make_gguf(tmp_path, tensors={"blk.0.attn_q.bias": np.zeros(64)})
    with pytest.raises(CheckpointError, match=r"k_proj\.bias \[32\] is missing"):
        open_checkpoint(path)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_read_number_by_number(tmp_path: Path, kind: str) -> None:
    """A wrong nibble or scale leaves weights that look like weights."""
    shape = (64, 256)
    blocks = k_quants.random_blocks(kind, *shape)
    path = make_gguf(tmp_path, intermediate=256, blocks={"blk.0.ffn_down.weight": (kind, blocks)})
    checkpoint = open_checkpoint(path)
    name = "model.layers.0.mlp.down_proj.weight"
    assert checkpoint.stored_dtype(name) == kind
    found = checkpoint.tensor(name)
    assert found.shape == shape
    np.testing.assert_allclose(found, k_quants.decode(kind, blocks), rtol=1e-5, atol=1e-7)
