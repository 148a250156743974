"""llama.cpp through llama-cpp-python, on the CPU."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from engines.errors import BackendError
from runtime.bench.dataset.peers.api import Q8_0, PeerEngine, PeerKind, PeerModel

FILE_TYPE_Q8_0 = 7
"""llama.h: LLAMA_FTYPE_MOSTLY_Q8_0."""
LOGGER = "llama-cpp-python"
_MOST_CHARACTERS = 200


class LlamaCpp:
    """A model of the high-level binding; ``eval`` computes the last id's logits only."""

    def __init__(self, binding: Any, model: Any, file: str) -> None:
        self._binding = binding
        self._model = model
        name = ctypes.create_string_buffer(_MOST_CHARACTERS)
        binding.llama_model_desc(model.model, name, _MOST_CHARACTERS)
        *_, stored = name.value.decode(errors="replace").split(" ", 2)  # "llama 256M Q4_1"
        self.description = f"llama-cpp-python {binding.__version__}, {file} ({stored})"
        self.num_ids: int = model.n_vocab()

    def begin(self, prompt: Sequence[int]) -> None:
        """See ``PeerEngine``."""
        self._model.reset()
        if prompt:
            self._eval(prompt)

    def step(self, token: int) -> int:
        """See ``PeerEngine``."""
        self._eval([token])
        logits = self._binding.llama_get_logits_ith(self._model.ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.num_ids,)).argmax())

    def _eval(self, ids: Sequence[int]) -> None:
        try:
            self._model.eval(ids)
        except (RuntimeError, ValueError, IndexError) as error:
            raise BackendError(f"llama.cpp could not go on: {error}") from None


@contextmanager
def _open(model: PeerModel) -> Iterator[PeerEngine]:
    try:
        import llama_cpp as binding
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"llama-cpp-python cannot be imported: {error}") from None
    logging.getLogger(LOGGER).setLevel(logging.ERROR)  # requantising tells of every tensor
    with TemporaryDirectory(prefix="ssd-trt-peer-") as folder:
        path, named = model.path, model.path.name
        if model.quantisation == Q8_0:
            path = Path(folder) / "q8_0.gguf"
            named = f"{named} requantised"
            _requantise(binding, model, path)
        try:
            opened = binding.Llama(
                model_path=os.fspath(path),
                n_ctx=model.max_len,
                n_threads=model.num_threads,
                n_threads_batch=model.num_threads,
                n_gpu_layers=0,
                verbose=False,
            )
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            raise BackendError(f"llama.cpp cannot load {model.path}: {error}") from None
        try:
            yield LlamaCpp(binding, opened, named)
        finally:
            opened.close()


def _requantise(binding: Any, model: PeerModel, path: Path) -> None:
    options = binding.llama_model_quantize_default_params()
    options.ftype = FILE_TYPE_Q8_0
    options.allow_requantize = True
    options.nthread = model.num_threads
    source, target = os.fsencode(model.path), os.fsencode(path)
    if binding.llama_model_quantize(source, target, ctypes.byref(options)):
        raise BackendError(f"llama.cpp cannot requantise {model.path} to Q8_0")


KIND = PeerKind("llama.cpp", {".gguf": {"llama_cpp": "llama-cpp-python"}}, _open)
