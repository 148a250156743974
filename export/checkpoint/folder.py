"""Hugging Face folders: config.json, safetensors (one file or shards with an index), tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint import draft_map, safetensors_file
from export.checkpoint.config import end_ids, spec_from_config
from export.checkpoint.fields import Fields
from export.checkpoint.safetensors_file import StoredTensor
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING, HEAD, check_shapes, digest, finite

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
DESCRIPTIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    _INDEX,
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_HUB_SNAPSHOT = re.compile(r"models--(.+?)--(.+)")


class FolderCheckpoint:
    """One Hugging Face folder as a ``Checkpoint``."""

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        weights: Mapping[str, StoredTensor],
        target_ids: npt.NDArray[np.int32] | None,
        files: frozenset[Path],
    ) -> None:
        self.path = path
        self.name = _display_name(path)
        self.spec = spec
        self._weights = weights
        self._target_ids = target_ids
        self._files = files  # of weights and of the vocabulary map
        self._fingerprint: str | None = None

    @classmethod
    def open(cls, path: Path) -> FolderCheckpoint:
        """Read config and tensor tables. Raises as ``open_checkpoint``."""
        where = str(path / "config.json")
        config = _read_json(path / "config.json")
        # Where the two differ, generation stops at what generation_config.json says.
        beside = path / "generation_config.json"
        generation = Fields(_read_json(beside, optional=True), str(beside))
        if generation.get("eos_token_id") is not None:
            spec = spec_from_config({**config, "eos_token_id": None}, where)
            spec = replace(spec, eos_token_ids=end_ids(generation, spec.vocab_size))
        else:
            spec = spec_from_config(config, where)
        everything = _all_tensors(path)
        stored = {
            name: tensor
            for name, tensor in everything.items()
            if not name.endswith("rotary_emb.inv_freq")  # a buffer, computed from the config
        }
        maps = {
            name: safetensors_file.read_integers(name, stored.pop(name))
            for name in (draft_map.OFFSETS, draft_map.MASK)
            if name in stored
        }
        ids = draft_map.target_ids(
            spec, maps.get(draft_map.OFFSETS), maps.get(draft_map.MASK), str(path)
        )
        for name, tensor in stored.items():
            safetensors_file.check_readable(name, tensor)
        check_shapes(spec, {name: tensor.shape for name, tensor in stored.items()}, str(path))
        if spec.tied_embeddings and HEAD in stored:
            _drop_tied_copy(stored, path)
        files = frozenset(tensor.path for tensor in everything.values())
        return cls(path, spec, stored, ids, files)

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        stored = self._stored(name)
        return finite(safetensors_file.read_floats(name, stored), name, str(stored.path))

    def stored_dtype(self, name: str) -> str:
        return self._stored(name).dtype

    def tokenizer_json(self) -> bytes | None:
        path = self.path / "tokenizer.json"
        return path.read_bytes() if path.is_file() else None

    def chat_template(self) -> str | None:
        path = self.path / "chat_template.jinja"
        if path.is_file():
            return _read_text(path)
        template = _read_json(self.path / "tokenizer_config.json", optional=True).get(
            "chat_template"
        )
        if isinstance(template, list):  # older files name several
            named = [entry for entry in template if isinstance(entry, Mapping)]
            template = next((e.get("template") for e in named if e.get("name") == "default"), None)
        return template if isinstance(template, str) else None

    def special_tokens(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            document = _read_json(self.path / file, optional=True)
            for role in _ROLES:
                value = document.get(role)
                text = value.get("content") if isinstance(value, Mapping) else value
                if isinstance(text, str):
                    found.setdefault(role, text)
        return found

    def draft_map(self) -> npt.NDArray[np.int32] | None:
        return None if self._target_ids is None else self._target_ids.copy()

    def fingerprint(self) -> str:
        if self._fingerprint is None:
            descriptions = [self.path / name for name in DESCRIPTIONS]
            files = [path for path in descriptions if path.is_file()]
            files += sorted(self._files)
            self._fingerprint = digest(files)
        return self._fingerprint

    def _stored(self, name: str) -> StoredTensor:
        if name not in self._weights:
            raise CheckpointError(f"{self.path}: no tensor {name}")
        return self._weights[name]


def _display_name(path: Path) -> str:
    snapshot = _HUB_SNAPSHOT.fullmatch(path.resolve().parent.parent.name)
    return f"{snapshot[1]}/{snapshot[2]}" if snapshot else path.resolve().name


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not readable as UTF-8 text ({error})") from None


def _read_json(path: Path, *, optional: bool = False) -> dict[str, object]:
    if optional and not path.is_file():
        return {}
    try:
        document = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise CheckpointError(
            f"{path}: has half a character in it (a lone \\ud800 or the like)"
        ) from None
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return document


def _all_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tables of all weight files together."""
    if (folder / _SINGLE).is_file():
        return safetensors_file.table(folder / _SINGLE)
    if (folder / _INDEX).is_file():
        return _sharded_tensors(folder)
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        raise UnsupportedModelError(
            f"{folder}: the weights are stored as pickle only ({pickles[0]}), which can run code "
            "when it is opened; convert them to safetensors"
        )
    raise CheckpointError(f"{folder}: no weights; expected {_SINGLE} or {_INDEX}")


def _sharded_tensors(folder: Path) -> dict[str, StoredTensor]:
    weight_map = _read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / _INDEX}: weight_map is missing or empty")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted({str(file) for file in weight_map.values()}):
        if Path(shard).name != shard:
            raise CheckpointError(f"{folder / _INDEX}: shard {shard!r} is not a plain file name")
        if not (folder / shard).is_file():
            raise CheckpointError(
                f"{folder}: the shard {shard} is listed in {_INDEX} but absent; fetch it again"
            )
        for name, tensor in safetensors_file.table(folder / shard).items():
            if name in tensors:
                raise CheckpointError(f"{folder}: {name} is stored in two shards")
            tensors[name] = tensor
    lost = next((name for name in weight_map if name not in tensors), None)
    if lost is not None:
        raise CheckpointError(f"{folder}: {_INDEX} lists {lost}, which no shard holds")
    return tensors


def _drop_tied_copy(stored: dict[str, StoredTensor], folder: Path) -> None:
    """A tied head may be stored again: left out if it is a copy, refused if it says otherwise."""
    head = safetensors_file.read_floats(HEAD, stored[HEAD])
    embedding = safetensors_file.read_floats(EMBEDDING, stored[EMBEDDING])
    if not np.array_equal(head, embedding, equal_nan=True):
        raise CheckpointError(
            f"{folder}: config.json ties the output head to the embedding, but {HEAD} differs from "
            f"{EMBEDDING}; set tie_word_embeddings to false to use it"
        )
    del stored[HEAD]
