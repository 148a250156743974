from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError, UnsupportedModelError
from export import fetch
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.rope import Llama3Rope
from export.checkpoint.spec import ModelSpec, inv_freq
from export.checkpoint.weights import weight_shapes
from tests.helpers.checkpoints import (
    CHAT_TEMPLATE,
    make_gguf,
    make_llama,
    random_weights,
    to_bfloat16,
)

WEIGHTS = random_weights("llama", 320, 64, 2, 4, 2, None, 96, False, 0)
ROUNDING = {"Q8_0": 0.01, "Q5_0": 0.08, "Q5_1": 0.06, "Q4_0": 0.15, "Q4_1": 0.12}
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1"])
def test_weights_come_back_within_the_error_of_their_type(tmp_path: Path, kind: str) -> None:
    """Exact for the float types; the bounds of the others are a few times their rounding error,
    and far below the error (about 1.4) of rows in the wrong order."""
    checkpoint = open_checkpoint(make_gguf(tmp_path, kind=kind))
    assert set(checkpoint.tensor_names()) == set(WEIGHTS)
    for name, expected in WEIGHTS.items():
        found = checkpoint.tensor(name)
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        assert found.flags.c_contiguous
        stored = kind if expected.ndim == 2 else "F32"
        assert checkpoint.stored_dtype(name) == stored
        error = np.linalg.norm(found - exact(expected, stored)) / np.linalg.norm(expected)
        assert error <= {"Q8_0": 0.01, "Q5_0": 0.08, "Q5_1": 0.06, "Q4_0": 0.15, "Q4_1": 0.12}.get(
            stored, 0.0
        ), name


def exact(array: np.ndarray, kind: str) -> np.ndarray:
    if kind == "BF16":
        return (to_bfloat16(array).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float16).astype(np.float32) if kind == "F16" else array


def rotate_neighbours(vector: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """llama.cpp's rotation: rows (2i, 2i + 1) turn together."""
    pairs = vector[0::2] + 1j * vector[1::2]
    return pairs * np.exp(1j * angles)


def rotate_halves(vector: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Hugging Face's rotation: rows (i, i + head_dim / 2) turn together."""
    half = len(vector) // 2
    return (vector[:half] + 1j * vector[half:]) * np.exp(1j * angles)


def test_attention_scores_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """The row order in a Llama GGUF only makes sense with llama.cpp's rotation. What we hand out
    must give the same scores with Hugging Face's, for every head and distance."""
    from gguf import GGUFReader

    path = make_gguf(tmp_path)
    stored = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}
    checkpoint = open_checkpoint(path)
    frequencies = inv_freq(checkpoint.spec)
    x = np.random.default_rng(1).normal(size=(2, 64))

    def scores(query: np.ndarray, key: np.ndarray, rotate: Any) -> np.ndarray:
        q = (query @ x[0]).reshape(4, 16)
        k = (key @ x[1]).reshape(2, 16)
        found = [
            np.vdot(rotate(q[head], 9 * frequencies), rotate(k[head // 2], at * frequencies)).real
            for head in range(4)
            for at in range(9)
        ]
        return np.array(found)

    theirs = scores(stored["blk.0.attn_q.weight"], stored["blk.0.attn_k.weight"], rotate_neighbours)
    ours = scores(
        checkpoint.tensor(QUERY),
        checkpoint.tensor(QUERY.replace("q_proj", "k_proj")),
        rotate_halves,
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_qwen3_rows_are_left_in_their_order(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_gguf(tmp_path, family="qwen3", head_dim=32))
    expected = random_weights("qwen3", 320, 64, 2, 4, 2, 32, 96, False, 0)
    assert set(checkpoint.tensor_names()) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array, err_msg=name)


def test_metadata_becomes_the_spec(tmp_path: Path) -> None:
    found = open_checkpoint(
        make_gguf(tmp_path, family="qwen3", head_dim=32, rope_theta=1e6, tied=True)
    ).spec
    assert found == ModelSpec(
        family="qwen3",
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        rope_scaling=None,
        max_position=512,
        tied_embeddings=True,
        qk_norm=True,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


def test_end_of_turn_ends_generation_too(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, metadata={"tokenizer.ggml.eot_token_id": 0})
    assert open_checkpoint(path).spec.eos_token_ids == (2, 0)


def llama3_factors(spec: ModelSpec, factor: float, original: int = 8192) -> np.ndarray:
    """What llama.cpp stores for a Llama 3 model: plain frequency / scaled frequency."""
    scaled = replace(spec, rope_scaling=Llama3Rope(factor, 1.0, 4.0, original))
    return inv_freq(spec) / inv_freq(scaled)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_factors_become_the_rope_scaling(tmp_path: Path, factor: float) -> None:
    """X5: a GGUF has no rope type for Llama 3, only a tensor; ignored, long texts loop."""
    plain = open_checkpoint(make_gguf(tmp_path / "plain", rope_theta=500000.0)).spec
    factors = llama3_factors(plain, factor)
    assert 1.0 < factors[4] < factor  # one frequency lies between the two limits
    path = make_gguf(tmp_path / "scaled", rope_theta=500000.0, rope_factors=factors)
    checkpoint = open_checkpoint(path)
    assert checkpoint.spec.rope_scaling == Llama3Rope(factor, 1.0, 4.0, 8192)
    assert "rope_freqs.weight" not in checkpoint.tensor_names()


def test_rope_factors_of_one_are_plain_rope(tmp_path: Path) -> None:
    assert open_checkpoint(make_gguf(tmp_path, rope_factors=[1.0] * 8)).spec.rope_scaling is None


def test_rope_factors_of_another_scaling_are_refused_by_name(tmp_path: Path) -> None:
    plain = open_checkpoint(make_gguf(tmp_path, rope_theta=500000.0)).spec
    others = [llama3_factors(plain, 8.0, original=4096), np.full(8, 4.0), np.linspace(1.0, 2.0, 8)]
    for factors in others:
        make_gguf(tmp_path, rope_theta=500000.0, rope_factors=factors)
        with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight is not Llama 3's"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize("factors", [[1.0] * 7, [0.0] * 8, [float("nan")] * 8])
def test_absurd_rope_factors_are_refused(tmp_path: Path, factors: list[float]) -> None:
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        open_checkpoint(make_gguf(tmp_path, rope_factors=factors))


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling type 'longrope'"),
        ({"llama.attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"llama.attention.value_length": 8}, "value_length 8 differs from the head size 16"),
        ({"llama.rope.dimension_count": 8}, "dimension_count 8 differs from the head size 16"),
        ({"split.count": 2}, "split GGUF"),
    ],
)
def test_unsupported_models_are_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        open_checkpoint(make_gguf(tmp_path, metadata=metadata))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": 3}, "model.layers.2.input_layernorm.weight .* is missing"),
        ({"llama.embedding_length": "64"}, "llama.embedding_length must be a whole number"),
        ({"llama.feed_forward_length": 100}, r"shape \[96, 64\].*asks for \[100, 64\]"),
        ({"tokenizer.ggml.eos_token_id": 320}, "eos_token_id must be a token id"),
    ],
)
def test_missing_and_absurd_metadata_is_named(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(make_gguf(tmp_path, metadata=metadata))


def test_other_architecture_is_named_before_anything_else(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "gemma2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="GGUF architecture 'gemma2' is not supported"):
        open_checkpoint(path)


def test_unreadable_quantisation_is_refused_by_tensor_and_type(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"token_embd\.weight is stored as MXFP4"):
        open_checkpoint(make_gguf(tmp_path, kind="MXFP4"))


def test_tensor_without_a_place_in_the_model_is_listed(tmp_path: Path) -> None:
    """X2: the exporter must see it to refuse it, under a name that people know."""
    extra = {"blk.0.ffn_up.bias": np.zeros(96), "blk.0.mystery.weight": np.zeros(3)}
    names = open_checkpoint(make_gguf(tmp_path, tensors=extra)).tensor_names()
    assert set(names) - set(WEIGHTS) == {
        "model.layers.0.mlp.up_proj.bias",
        "blk.0.mystery.weight",
    }


@pytest.mark.parametrize("missing", ["token_embd.weight", "output_norm.weight"])
def test_missing_tensor_is_named(tmp_path: Path, missing: str) -> None:
    hf_name = {"output_norm.weight": "model.norm.weight"}.get(missing, missing)
    with pytest.raises(CheckpointError, match=hf_name):
        open_checkpoint(make_gguf(tmp_path, tensors={missing: None}))


def test_nan_is_refused_by_name(tmp_path: Path) -> None:
    broken = WEIGHTS["model.norm.weight"].copy()
    broken[7] = np.nan
    checkpoint = open_checkpoint(make_gguf(tmp_path, tensors={"output_norm.weight": broken}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds 1 values that are NaN"):
        checkpoint.tensor("model.norm.weight")


def test_nan_block_scale_is_refused(tmp_path: Path) -> None:
    """A quantised block has no NaN of its own, but its fp16 scale can be one."""
    path = make_gguf(tmp_path, kind="Q8_0")
    from gguf import GGUFReader

    data = bytearray(path.read_bytes())
    at = next(t.data_offset for t in GGUFReader(path).tensors if t.name == "blk.0.ffn_up.weight")
    data[at : at + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"mlp\.up_proj\.weight holds 32 values"):
        open_checkpoint(path).tensor("model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize("keep", [0.0, 0.0001, 0.01, 0.05, 0.1, 0.5, 0.999])
def test_truncated_file_is_one_line(tmp_path: Path, keep: float) -> None:
    """Cut in the magic, in the metadata, in the tensor table, in the data."""
    path = make_gguf(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(CheckpointError, match="not a whole GGUF file") as error:
        open_checkpoint(path)
    assert "\n" not in str(error.value)


def test_metadata_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    path = make_gguf(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"{% for message", b"\xff\xfe for message"))
    with pytest.raises(CheckpointError, match="not a whole GGUF file"):
        open_checkpoint(path)


def test_token_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    path = make_gguf(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"<|endoftext|>", b"\xff\xfeendoftext|>"))
    with pytest.raises(CheckpointError, match="damaged metadata"):
        open_checkpoint(path).tokenizer_json()


def test_file_of_another_format_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    with pytest.raises(CheckpointError, match="not a whole GGUF file"):
        open_checkpoint(path)


def test_folder_with_one_gguf_opens_it(tmp_path: Path) -> None:
    """Also beside the config.json that a GGUF repository often keeps."""
    path = make_gguf(tmp_path)
    assert open_checkpoint(tmp_path).path == path
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).path == path


def test_folder_with_several_gguf_files_needs_a_choice(tmp_path: Path) -> None:
    make_gguf(tmp_path, kind="F32")
    make_gguf(tmp_path, kind="Q8_0")
    with pytest.raises(CheckpointError, match=r"tiny-F32\.gguf, tiny-Q8_0\.gguf"):
        open_checkpoint(tmp_path)


def test_safetensors_go_before_a_gguf_beside_them(tmp_path: Path) -> None:
    make_gguf(make_llama(tmp_path))
    assert open_checkpoint(tmp_path).path == tmp_path


def test_template_special_tokens_and_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_gguf(tmp_path))
    assert checkpoint.name == "tiny-F32"
    assert checkpoint.chat_template() == CHAT_TEMPLATE
    assert checkpoint.special_tokens() == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert checkpoint.draft_map() is None
    bare = open_checkpoint(make_gguf(tmp_path / "bare", chat_template=False))
    assert bare.chat_template() is None


def test_fingerprint_depends_on_contents_alone(tmp_path: Path) -> None:
    first = open_checkpoint(make_gguf(tmp_path / "a")).fingerprint()
    assert open_checkpoint(make_gguf(tmp_path / "b")).fingerprint() == first
    assert open_checkpoint(make_gguf(tmp_path / "c", seed=1)).fingerprint() != first


@pytest.fixture(scope="module")
def default_target() -> Checkpoint:
    path = fetch.location("smollm2-135m")
    if not path.is_file():
        pytest.skip(f"not fetched; run: {fetch.fetch_command('smollm2-135m')}")
    return open_checkpoint(path)


@pytest.mark.real
def test_the_default_target_is_read_whole(default_target: Checkpoint) -> None:
    spec = default_target.spec
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert (spec.vocab_size, spec.head_dim, spec.intermediate_size) == (49152, 64, 1536)
    assert (spec.rms_norm_eps, spec.rope_theta, spec.max_position) == (1e-5, 100000.0, 8192)
    assert spec.tied_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert set(default_target.tensor_names()) == set(weight_shapes(spec))
    sizes = [default_target.tensor(name).size for name in default_target.tensor_names()]
    assert sum(sizes) == 134_515_008
    assert default_target.stored_dtype("model.embed_tokens.weight") == "Q8_0"
    assert default_target.stored_dtype(QUERY) == "Q4_1"
