from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engines.errors import CheckpointError
from export.checkpoint.api import open_checkpoint
from export.checkpoint.weights import weight_shapes
from tests.helpers.checkpoints import (
    CHAT_TEMPLATE,
    make_draft,
    make_llama,
    make_qwen3,
    random_weights,
    to_bfloat16,
    write_safetensors,
)

WEIGHTS = random_weights("llama", 320, 32, 2, 4, 2, None, 64, False, 0)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (to_bfloat16(array).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float16 if dtype == "F16" else np.float32).astype(np.float32)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_weight_comes_back_as_written(tmp_path: Path, dtype: str, shards: int) -> None:
    checkpoint = open_checkpoint(make_llama(tmp_path, dtype=dtype, shards=shards))
    assert set(checkpoint.tensor_names()) == set(WEIGHTS)
    for name, expected in WEIGHTS.items():
        found = checkpoint.tensor(name)
        assert found.dtype == np.float32
        assert found.flags.c_contiguous
        assert found.flags.writeable
        np.testing.assert_array_equal(found, rounded(expected, dtype), err_msg=name)
        assert checkpoint.stored_dtype(name) == dtype


def test_a_returned_weight_is_the_callers_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_llama(tmp_path))
    checkpoint.tensor("model.norm.weight")[:] = 7.0
    np.testing.assert_array_equal(
        checkpoint.tensor("model.norm.weight"), WEIGHTS["model.norm.weight"]
    )


def test_qwen3_lists_its_query_and_key_norms(tmp_path: Path) -> None:
    """X2: dropped q_norm and k_norm garble the output."""
    checkpoint = open_checkpoint(make_qwen3(tmp_path))
    assert "model.layers.1.self_attn.q_norm.weight" in checkpoint.tensor_names()
    assert checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").shape == (64, 32)
    assert set(checkpoint.tensor_names()) == set(weight_shapes(checkpoint.spec))


def test_unknown_tensors_are_listed_and_rotary_buffers_are_not(tmp_path: Path) -> None:
    """X2: hiding a weight without a place in the model would hide that the model is another."""
    extra = {
        "model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    names = open_checkpoint(make_llama(tmp_path, tensors=extra)).tensor_names()
    assert set(names) - set(WEIGHTS) == {"model.layers.0.self_attn.q_proj.bias"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_nan_and_infinite_weights_are_refused_by_name(
    tmp_path: Path, bad: float, dtype: str
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    broken = WEIGHTS[name].copy()
    broken[3, 4] = bad
    checkpoint = open_checkpoint(make_llama(tmp_path, dtype=dtype, tensors={name: broken}))
    with pytest.raises(
        CheckpointError, match=f"{name} holds 1 values that are NaN or infinite; fetch or"
    ):
        checkpoint.tensor(name)
    checkpoint.tensor("model.norm.weight")


def test_infinities_that_cancel_are_found(tmp_path: Path) -> None:
    """The quick test is a sum: +inf and -inf in one tensor must not slip through it."""
    broken = WEIGHTS["model.norm.weight"].copy()
    broken[:2] = [np.inf, -np.inf]
    checkpoint = open_checkpoint(make_llama(tmp_path, tensors={"model.norm.weight": broken}))
    with pytest.raises(CheckpointError, match="holds 2 values"):
        checkpoint.tensor("model.norm.weight")


def test_stored_copy_of_a_tied_head_is_left_out(tmp_path: Path) -> None:
    """X10: stored twice in the checkpoint must not become stored twice in the bundle."""
    copy = {"lm_head.weight": WEIGHTS["model.embed_tokens.weight"]}
    checkpoint = open_checkpoint(make_llama(tmp_path, tied=True, tensors=copy))
    assert "lm_head.weight" not in checkpoint.tensor_names()
    assert set(checkpoint.tensor_names()) == set(weight_shapes(checkpoint.spec))


def test_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    other = {"lm_head.weight": WEIGHTS["lm_head.weight"]}
    make_llama(tmp_path, tied=True, tensors=other)
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to false"):
        open_checkpoint(tmp_path)


def test_untied_model_needs_a_head(tmp_path: Path) -> None:
    make_llama(tmp_path, tensors={"lm_head.weight": None})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight \[320, 32\] is missing"):
        open_checkpoint(tmp_path)


def test_generation_config_decides_where_generation_ends(tmp_path: Path) -> None:
    """Chat models end a turn with a token that config.json does not name."""
    make_llama(tmp_path)
    assert open_checkpoint(tmp_path).spec.eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert open_checkpoint(tmp_path).spec.eos_token_ids == (2, 0)


def test_tokenizer_template_and_special_tokens(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_llama(tmp_path))
    assert checkpoint.tokenizer_json() == (tmp_path / "tokenizer.json").read_bytes()
    assert checkpoint.chat_template() == CHAT_TEMPLATE
    assert checkpoint.special_tokens() == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_template_file_goes_before_the_tokenizer_config(tmp_path: Path) -> None:
    (make_llama(tmp_path) / "chat_template.jinja").write_text("from the file")
    assert open_checkpoint(tmp_path).chat_template() == "from the file"


def test_the_default_of_several_templates(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    path = make_llama(tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": templates}))
    assert open_checkpoint(tmp_path).chat_template() == "D"
    path.write_text(json.dumps({"chat_template": templates[:1]}))
    assert open_checkpoint(tmp_path).chat_template() is None


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_llama(tmp_path, tokenizer=False))
    assert checkpoint.tokenizer_json() is None
    assert checkpoint.chat_template() is None
    assert checkpoint.special_tokens() == {}


def test_fingerprint_depends_on_contents_alone(tmp_path: Path) -> None:
    first = open_checkpoint(make_llama(tmp_path / "a")).fingerprint()
    assert first == open_checkpoint(make_llama(tmp_path / "elsewhere")).fingerprint()
    others = [
        make_llama(tmp_path / "seed", seed=1),
        make_llama(tmp_path / "config", config={"rms_norm_eps": 1e-6}),
        make_llama(tmp_path / "template", chat_template=False),
    ]
    found = {open_checkpoint(path).fingerprint() for path in others}
    assert len(found) == 3
    assert first not in found


def test_fingerprint_sees_one_changed_byte_of_a_shard(tmp_path: Path) -> None:
    make_llama(tmp_path, shards=2)
    before = open_checkpoint(tmp_path).fingerprint()
    shard = tmp_path / "model-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    assert open_checkpoint(tmp_path).fingerprint() != before


def test_names_for_people(tmp_path: Path) -> None:
    assert open_checkpoint(make_llama(tmp_path / "tiny")).name == "tiny"
    snapshot = tmp_path / "models--some-org--some-model" / "snapshots" / "0123abc"
    assert open_checkpoint(make_llama(snapshot)).name == "some-org/some-model"


@pytest.mark.parametrize("layers", [99, 10**18])
def test_a_number_of_layers_far_beyond_the_weights_is_refused_at_once(
    tmp_path: Path, layers: int
) -> None:
    """A table of 10**18 layers was begun: memory filled and nothing was said."""
    folder = make_llama(tmp_path, config={"num_hidden_layers": layers})
    with pytest.raises(CheckpointError, match=f"asks for {layers} layers"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [("[" * 100_000, "not valid JSON"), ('{"bos_token": "\\ud800"}', "half a character")],
)
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_json_that_no_bundle_could_carry_is_refused(
    tmp_path: Path, file: str, text: str, words: str
) -> None:
    folder = make_llama(tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder).special_tokens()


def test_an_absurd_end_of_generation_names_the_file_that_it_stands_in(tmp_path: Path) -> None:
    """config.json was named, where nothing is wrong; an id that is not in use hurts nobody."""
    make_llama(tmp_path, config={"eos_token_id": -1})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 999]}')
    with pytest.raises(CheckpointError, match=r"/generation_config\.json: eos_token_id .* 999"):
        open_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert open_checkpoint(tmp_path).spec.eos_token_ids == (2,)


def test_fingerprint_sees_a_vocabulary_map_in_a_shard_of_its_own(tmp_path: Path) -> None:
    """The bundle with the old map was called up to date: it proposed the ids of other tokens."""
    names, found = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], set()
    for shift in (0, 20):
        folder = make_draft(tmp_path / str(shift), offsets=np.full(300, shift))
        weights = folder / "model.safetensors"
        stored = open_checkpoint(folder)
        arrays = {name: stored.tensor(name) for name in stored.tensor_names()}
        weights.unlink()
        write_safetensors(folder / names[0], arrays, "F32")
        write_safetensors(folder / names[1], {"d2t": np.full(300, shift)}, "F32")
        shards = {**dict.fromkeys(arrays, names[0]), "d2t": names[1]}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        found.add(open_checkpoint(folder).fingerprint())
    assert len(found) == 2
