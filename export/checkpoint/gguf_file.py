"""GGUF files (llama.cpp), read through the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint import gguf_tokenizer
from export.checkpoint.fields import Fields
from export.checkpoint.gguf_metadata import architecture_of, hf_name, spec_from_metadata
from export.checkpoint.gguf_rope import (
    FACTORS,
    LLAMA3_FACTORS,
    LONG_FACTORS,
    SHORT_FACTORS,
    RopeFactors,
)
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import advice_on, check_shapes, digest, finite
from export.packages import require

READABLE = (
    *("F32", "F16", "BF16", "Q8_0"),
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q4_K", "Q5_K", "Q6_K"),
)
"""The library dequantises more; these are compared with their formats by tests."""
SHORT_LIST = 1024
"""Entries of a list that is read with the rest: one a layer, say, which must not pass unseen."""
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}


class GgufCheckpoint:
    """One GGUF file as a ``Checkpoint``."""

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        metadata: Mapping[str, object],
        fields: Mapping[str, Any],
        tensors: Mapping[str, Any],
    ) -> None:
        self.path = path
        self.name = path.stem
        self.spec = spec
        self._architecture = metadata["general.architecture"]
        self._metadata = metadata  # without the long lists, which only _fields has
        self._fields = fields
        self._tensors = tensors
        self._fingerprint: str | None = None

    @classmethod
    def open(cls, path: Path) -> GgufCheckpoint:
        """Read metadata and tensor table. Raises as ``open_checkpoint``."""
        where = path.name
        reader, metadata = _read_tables(path)
        arch = architecture_of(metadata, where)
        tensors: dict[str, Any] = {hf_name(tensor.name, arch): tensor for tensor in reader.tensors}
        factors = {
            name: _dequantised(tensors.pop(name), where) for name in FACTORS if name in tensors
        }
        if LONG_FACTORS in factors and SHORT_FACTORS not in factors:
            raise CheckpointError(f"{where}: {LONG_FACTORS} is there without {SHORT_FACTORS}")
        shapes = {name: _shape(tensor) for name, tensor in tensors.items()}
        spec = spec_from_metadata(
            metadata,
            shapes=shapes,
            rope_factors=RopeFactors(factors.get(LLAMA3_FACTORS), factors.get(SHORT_FACTORS)),
            where=where,
        )
        for tensor in tensors.values():
            _check_readable(tensor, where)
        check_shapes(spec, shapes, where)
        return cls(path, spec, metadata, reader.fields, tensors)

    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        array = finite(_dequantised(self._stored(name), self.path.name), name, self.path.name)
        if self._architecture == "llama" and ".self_attn." in name:
            num_heads = {"q_proj": self.spec.num_heads, "k_proj": self.spec.num_kv_heads}
            projection = name.split(".")[-2]
            if projection in num_heads:
                return _split_rotary_halves(array, num_heads[projection])
        if self.spec.norms_add_one and name.endswith("norm.weight"):
            array -= 1.0  # stored with the 1 already added
        return array

    def stored_dtype(self, name: str) -> str:
        kind: str = self._stored(name).tensor_type.name
        return kind

    def tokenizer_json(self) -> bytes | None:
        if "tokenizer.ggml.model" not in self._metadata:
            return None
        try:
            everything = {key: field.contents() for key, field in self._fields.items()}
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path.name}: damaged metadata ({error})") from None
        return gguf_tokenizer.tokenizer_json(everything, self.path.name)

    def chat_template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def special_tokens(self) -> dict[str, str]:
        tokens = self._fields.get("tokenizer.ggml.tokens")
        if tokens is None:
            return {}
        fields = Fields(self._metadata, self.path.name)
        found: dict[str, str] = {}
        for gguf_role, role in _ROLES.items():
            index = fields.token_id(f"tokenizer.ggml.{gguf_role}_token_id", len(tokens.data))
            if index is not None:
                found[f"{role}_token"] = tokens.contents(index)
        return found

    def draft_map(self) -> npt.NDArray[np.int32] | None:
        return None

    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = digest([self.path])
        return self._fingerprint

    def _stored(self, name: str) -> Any:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path.name}: no tensor {name}")
        return self._tensors[name]


def _read_tables(path: Path) -> tuple[Any, dict[str, object]]:
    """The library's reader, and the metadata without long lists (a vocabulary takes seconds)."""
    gguf = require("gguf", "gguf", "export", "reading a GGUF file", ("GGUFReader",))

    class Reader(gguf.GGUFReader):  # type: ignore[misc,name-defined]
        """Past the end of a file the library reads nothing, as often as a damaged count says."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            part = super()._get(offset, dtype, count, *order, **named)
            if part.size < count:
                raise ValueError(f"the file ends before byte {offset + 1}")
            return part

    try:
        reader = Reader(path)
        fields = reader.fields
        metadata = {
            key: field.contents()
            for key, field in fields.items()
            if len(field.data) <= (1 if key.startswith("tokenizer.") else SHORT_LIST)
        }
    # A damaged file surfaces in the reader as whatever its bytes happen to break.
    except (OSError, ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "" if isinstance(error, OSError) else advice_on(path)
        raise CheckpointError(f"{path}: not a whole GGUF file ({reason}){hint}") from None
    if reader.byte_order != "I":
        raise UnsupportedModelError(f"{path}: GGUF of the other byte order is not supported")
    return reader, metadata


def _shape(tensor: Any) -> tuple[int, ...]:
    """Rows first; GGUF lists the contiguous dimension first."""
    return tuple(int(size) for size in reversed(tensor.shape.tolist()))


def _check_readable(tensor: Any, where: str) -> None:
    kind = tensor.tensor_type.name
    if kind not in READABLE:
        raise UnsupportedModelError(
            f"{where}: {tensor.name} is stored as {kind}, which cannot be read; "
            f"readable are {', '.join(READABLE)}"
        )


def _dequantised(tensor: Any, where: str) -> npt.NDArray[np.float32]:
    _check_readable(tensor, where)
    from gguf.quants import dequantize

    # A copy, since F32 would otherwise be a view of the file.
    return np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32, order="C")


def _split_rotary_halves(array: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo the row order llama.cpp gives Q and K of this family.

    It rotates neighbouring rows (2i, 2i + 1) of a head, Hugging Face rows (i, i + head_dim / 2).
    """
    pairs = array.reshape(num_heads, len(array) // num_heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
