from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError, UnsupportedModelError
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


def test_absent_tensor_is_named(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_llama(tmp_path))
    for call in (checkpoint.tensor, checkpoint.stored_dtype):
        with pytest.raises(CheckpointError, match=r"no tensor model\.nothing"):
            call("model.nothing")


def test_missing_weight_is_named_at_opening(tmp_path: Path) -> None:
    make_llama(tmp_path, tensors={"model.layers.1.mlp.gate_proj.weight": None})
    with pytest.raises(CheckpointError, match=r"1\.mlp\.gate_proj\.weight .* is missing"):
        open_checkpoint(tmp_path)


def test_weight_of_another_shape_is_named_at_opening(tmp_path: Path) -> None:
    make_llama(tmp_path, config={"intermediate_size": 80})
    with pytest.raises(CheckpointError, match=r"shape \[64, 32\].*asks for \[80, 32\]"):
        open_checkpoint(tmp_path)


def test_weights_in_a_storage_type_we_cannot_read_are_named(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    make_llama(tmp_path, tensors={name: np.zeros((64, 32), np.int32)})
    with pytest.raises(UnsupportedModelError, match=f"{name} is stored as I32"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 200, 0.5, 0.99])
def test_truncated_file_is_one_line(tmp_path: Path, keep: float) -> None:
    """Cut in the length, in the header, in the data."""
    path = make_llama(tmp_path) / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not a whole") as error:
        open_checkpoint(tmp_path)
    assert "\n" not in str(error.value)


def test_listed_but_absent_shard_is_named(tmp_path: Path) -> None:
    make_llama(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is listed"):
        open_checkpoint(tmp_path)


def test_tensor_listed_in_the_index_but_in_no_shard_is_named(tmp_path: Path) -> None:
    index = make_llama(tmp_path, shards=2) / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.lost.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"lists model\.lost\.weight, which no shard"):
        open_checkpoint(tmp_path)


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Which of the two counts would depend on the order of reading."""
    make_llama(tmp_path, shards=2)
    for shard in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        write_safetensors(tmp_path / shard, WEIGHTS, "F32")
    with pytest.raises(CheckpointError, match="stored in two shards"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_shard_outside_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    index = make_llama(tmp_path, shards=2) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    with pytest.raises(CheckpointError, match="not a plain file name"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_without_a_map_is_refused(tmp_path: Path, text: str) -> None:
    (make_llama(tmp_path, shards=2) / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="weight_map"):
        open_checkpoint(tmp_path)


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "ran"))


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt"])
def test_pickle_only_checkpoint_is_refused_unopened(tmp_path: Path, file: str) -> None:
    make_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    with pytest.raises(UnsupportedModelError, match=f"pickle only .{file}., which can run code"):
        open_checkpoint(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_folder_without_weights(tmp_path: Path) -> None:
    make_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights; expected model\.safetensors"):
        open_checkpoint(tmp_path)


def test_places_that_hold_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"neither a config\.json nor"):
        open_checkpoint(tmp_path)
    path = make_llama(tmp_path) / "model.safetensors"
    with pytest.raises(CheckpointError, match="give the folder"):
        open_checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": 1'])
def test_damaged_config_is_one_line(tmp_path: Path, content: bytes) -> None:
    (make_llama(tmp_path) / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json") as error:
        open_checkpoint(tmp_path)
    assert "\n" not in str(error.value)


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


def test_a_weight_file_that_may_not_be_read_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library says "No such file" of every file that it cannot open."""
    folder, plain = make_llama(tmp_path), Path.open

    def guarded(path: Path, *args: Any, **options: Any) -> Any:
        if path.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *args, **options)

    monkeypatch.setattr(Path, "open", guarded)
    with pytest.raises(CheckpointError, match="Permission denied"):
        open_checkpoint(folder)


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


@pytest.mark.parametrize(
    ("prefix", "renamed"), [("", "embed_tokens"), ("language_model.model.", "language_model")]
)
def test_weights_under_other_names_are_pointed_at(
    tmp_path: Path, prefix: str, renamed: str
) -> None:
    """A model without its head, and the text part of a larger one: "missing" alone puzzles."""
    folder = make_llama(tmp_path)
    other = {prefix + name.removeprefix("model."): array for name, array in WEIGHTS.items()}
    write_safetensors(folder / "model.safetensors", other, "F32")
    with pytest.raises(CheckpointError, match=rf"is missing; {renamed}\S*\.weight is there"):
        open_checkpoint(folder)


def test_a_damaged_weight_names_its_folder(tmp_path: Path) -> None:
    """Of a pair, both models have a model.safetensors."""
    bad = np.full(32, np.nan, np.float32)
    checkpoint = open_checkpoint(make_llama(tmp_path / "mine", tensors={"model.norm.weight": bad}))
    with pytest.raises(CheckpointError, match=r"mine/model\.safetensors: model\.norm"):
        checkpoint.tensor("model.norm.weight")


@pytest.mark.parametrize("file", ["model.safetensors", "model.gguf"])
def test_a_pointer_in_the_place_of_weights_is_recognised(tmp_path: Path, file: str) -> None:
    """What a clone without git-lfs has: "header too large" or "magic invalid" explains nothing."""
    path = make_llama(tmp_path) / file
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(CheckpointError, match=r"not a whole .*; .* git lfs pull$"):
        open_checkpoint(path if file.endswith("gguf") else tmp_path)
