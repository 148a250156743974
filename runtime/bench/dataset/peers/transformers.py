"""Hugging Face transformers on torch, on the CPU.

Its own loop around the model, without ``generate``: less work between two tokens than a user of
``generate`` has.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from inspect import signature
from pathlib import Path
from typing import Any

from engines.errors import BackendError
from runtime.bench.dataset.peers.api import PeerEngine, PeerKind, PeerModel


class Transformers:
    """A causal model and the cache of one text."""

    def __init__(self, torch: Any, library: Any, model: Any, file: str) -> None:
        self._torch = torch
        self._library = library
        self._model = model
        # Newer releases warn of the old name, older ones do not know the new one.
        names = signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._cache: Any = None
        kind = str(model.dtype).removeprefix("torch.")
        self.description = (
            f"transformers {library.__version__}, torch {torch.__version__}, {file} in {kind}"
        )
        self.num_ids: int = model.config.get_text_config().vocab_size

    def begin(self, prompt: Sequence[int]) -> None:
        """See ``PeerEngine``."""
        self._cache = self._library.DynamicCache()
        if prompt:
            self._logits(prompt)

    def step(self, token: int) -> int:
        """See ``PeerEngine``."""
        return int(self._logits([token]).argmax())

    def _logits(self, ids: Sequence[int]) -> Any:
        """Of the last id, [vocabulary]."""
        try:
            with self._torch.inference_mode():
                given = self._torch.tensor([list(ids)])
                cache = {self._cache_name: self._cache}
                found = self._model(input_ids=given, use_cache=True, logits_to_keep=1, **cache)
        except (RuntimeError, ValueError, IndexError) as error:
            raise BackendError(f"transformers could not go on: {error}") from None
        return found.logits[0, -1]


@contextmanager
def _open(model: PeerModel) -> Iterator[PeerEngine]:
    try:
        import torch
        import transformers as library
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"transformers cannot be imported: {error}") from None
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(model.num_threads)
    try:
        yield Transformers(torch, library, _load(library, model.path), model.path.name)
    finally:
        torch.set_num_threads(threads)


def _load(library: Any, path: Path) -> Any:
    # What a .gguf file holds is unpacked; a folder's weights run as they are stored.
    how = {"dtype": "auto"} if path.is_dir() else {"gguf_file": path.name}
    folder = path if path.is_dir() else path.parent
    try:
        with redirect_stderr(io.StringIO()):  # unpacking has a bar that cannot be turned off
            model = library.AutoModelForCausalLM.from_pretrained(
                str(folder), local_files_only=True, **how
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise BackendError(f"transformers cannot load {path}: {error}") from None
    return model.eval()


_PACKAGES = {"torch": "torch", "transformers": "transformers"}
KIND = PeerKind(
    "transformers",
    {"": _PACKAGES, ".gguf": {**_PACKAGES, "gguf": "gguf", "accelerate": "accelerate"}},
    _open,
)
