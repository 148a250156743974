"""Folders that hold no whole checkpoint: each is refused in a line that names what is wrong."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.api import open_checkpoint
from tests.helpers.checkpoints import (
    make_llama,
    random_weights,
    write_safetensors,
)

WEIGHTS = random_weights("llama", 320, 32, 2, 4, 2, None, 64, False, 0)


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
