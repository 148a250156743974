"""The one interface to source checkpoints, whatever their format.

    open_checkpoint(path)   a Hugging Face folder (safetensors), a .gguf file, a folder with one

Everything is checked when it is opened (config, every weight's presence, shape and storage type,
a draft's vocabulary map), so that a build fails before it has worked; values are checked as they
are read. Errors are engines.errors.CheckpointError and its subclass UnsupportedModelError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError
from export.checkpoint.spec import ModelSpec

GGUF_SUFFIX = ".gguf"


class Checkpoint(Protocol):
    """A readable checkpoint. Files are opened lazily; nothing is written."""

    @property
    def spec(self) -> ModelSpec:
        """Sizes and constants of the model."""
        ...

    @property
    def name(self) -> str:
        """A short name for people: folder, file stem, or ORG/NAME of a hub snapshot."""
        ...

    @property
    def path(self) -> Path:
        """The folder or file it was opened from."""
        ...

    def tensor_names(self) -> tuple[str, ...]:
        """Every weight stored, under its Hugging Face name ("model.layers.0.mlp.up_proj.weight").

        Left out, and nothing else: rotary buffers (…rotary_emb.inv_freq, GGUF's rope_freqs and
        rope_factors: they are in ``spec``), a stored copy of a tied head, and the vocabulary maps
        d2t and t2d (``draft_map``). A name without a place in the model is listed: the exporter
        refuses it.
        """
        ...

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """One weight in Hugging Face layout and row order, float32, C-contiguous.

        The array is new and the caller's own. Raises CheckpointError naming the tensor where it
        does not exist or holds NaN or infinity.
        """
        ...

    def stored_dtype(self, name: str) -> str:
        """How the file stores it, in the format's own word: "BF16", "Q8_0", "Q4_K", ..."""
        ...

    def tokenizer_json(self) -> bytes | None:
        """tokenizer.json of the ``tokenizers`` library (rebuilt from GGUF metadata), or None."""
        ...

    def chat_template(self) -> str | None:
        """The default chat template (Jinja), or None."""
        ...

    def special_tokens(self) -> dict[str, str]:
        """Texts of the tokens with a role: "bos_token", "eos_token", "unk_token", "pad_token"."""
        ...

    def draft_map(self) -> npt.NDArray[np.int32] | None:
        """Target id of every draft id, int32 ``[draft_vocab_size]``; None for a whole vocabulary.

        Absolute ids, each in [0, vocab_size) and none twice.
        """
        ...

    def fingerprint(self) -> str:
        """SHA-256 (hex) over every file the checkpoint is read from; a key for caches."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint and check it. Weights are not read yet.

    Raises CheckpointError (missing, damaged, inconsistent), UnsupportedModelError (a model or a
    storage format the exporter cannot use), MissingDependencyError.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint; give a folder or a {GGUF_SUFFIX} file")
    if path.is_file():
        return _open_file(path)
    found = sorted(path.glob(f"*{GGUF_SUFFIX}"))
    # Repositories of GGUF files often keep the config.json of the model they were made from.
    only_gguf = bool(found) and not any(path.glob("*.safetensors*"))
    if (path / "config.json").is_file() and not only_gguf:
        from export.checkpoint.folder import FolderCheckpoint

        return FolderCheckpoint.open(path)
    if len(found) == 1:
        return _open_file(found[0])
    if found:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(
            f"{path}: holds several {GGUF_SUFFIX} files ({names}); name one of them"
        )
    raise CheckpointError(
        f"{path}: neither a config.json nor a {GGUF_SUFFIX} file is in this folder"
    )


def _open_file(path: Path) -> Checkpoint:
    if path.suffix == GGUF_SUFFIX:
        from export.checkpoint.gguf_file import GgufCheckpoint

        return GgufCheckpoint.open(path)
    raise CheckpointError(
        f"{path}: a single file must be {GGUF_SUFFIX}; "
        "for safetensors give the folder that holds config.json"
    )
