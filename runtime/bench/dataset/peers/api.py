"""What another engine has to do to be compared with, and how it becomes a contestant."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

from engines.errors import MissingDependencyError, UsageError
from runtime.bench.dataset.contestant import Block, Sample

STORED, Q8_0 = "stored", "q8_0"
QUANTISATIONS = (STORED, Q8_0)
WEIGHTS_OPTION = "--peer-model"


@dataclass(frozen=True, slots=True)
class PeerModel:
    """What a peer is to run.

    path          weights: a .gguf file, or a folder with config.json and safetensors
    quantisation  of QUANTISATIONS; only llama.cpp can requantise
    num_threads   for prompts and for decoding
    max_len       tokens of a prompt and its answer together
    """

    path: Path
    quantisation: str
    num_threads: int
    max_len: int


class PeerEngine(Protocol):
    """One text in another engine, greedy: the most likely id is the next, the lowest of equals."""

    @property
    def description(self) -> str:
        """Engine and version, weights, what it computes in."""

    @property
    def num_ids(self) -> int:
        """Size of its vocabulary."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the text before, and take in ids; there may be none."""

    def step(self, token: int) -> int:
        """Take in one id more and return the next one. Raises BackendError."""


@dataclass(frozen=True, slots=True)
class PeerKind:
    """An engine that can be asked for.

    needs  by the suffix of the weights that it reads ("" is a folder), the packages that it takes:
           import name -> distribution, all from the extra ``peers``
    open   closes the engine behind itself. Raises BackendError
    """

    name: str
    needs: Mapping[str, Mapping[str, str]]
    open: Callable[[PeerModel], AbstractContextManager[PeerEngine]]

    def require(self, path: Path) -> None:
        """Raise UsageError for weights that it does not read, MissingDependencyError where it is
        not installed."""
        suffix = "" if path.is_dir() else path.suffix
        if suffix not in self.needs:
            kinds = " or ".join(f"a {each} file" if each else "a folder" for each in self.needs)
            raise UsageError(
                f"{self.name} does not read {path}; name {kinds} with {WEIGHTS_OPTION}, or leave "
                f"{self.name} away"
            )
        for module, package in self.needs[suffix].items():
            if importlib.util.find_spec(module) is None:
                raise MissingDependencyError(package, "peers", f"--peers {self.name}")


class Peer:
    """A peer as a contestant.

    The prompt's last id is the first that decoding takes in, as in a bundle: so as many calls are
    timed as tokens come out, in both.
    """

    is_peer = True
    note: str | None = None

    def __init__(self, name: str, engine: PeerEngine, model: PeerModel) -> None:
        self.name = name
        self.description = f"{engine.description}, threads: {model.num_threads}"
        self._engine = engine
        self._max_len = model.max_len

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
        """See ``Contestant``."""
        *before, token = prompt
        begun = perf_counter()
        self._engine.begin(before)
        decoding = perf_counter()
        blocks = []
        tokens = []
        for _ in range(min(max_tokens, self._max_len - len(prompt))):
            token = self._engine.step(token)
            tokens.append(token)
            blocks.append(Block(perf_counter(), 1, 0, 0, None, "ar"))
        decode_s = blocks[-1].at_s - decoding if blocks else 0.0
        return Sample(tuple(tokens), begun, decode_s, tuple(blocks))
