"""A peer without a model: the next id follows from the last two, and nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engines.errors import BackendError
from runtime.bench.dataset.peers.api import PeerEngine, PeerKind, PeerModel


class Toy:
    """Next id: (last + 2 x the one before + 1) modulo ``num_ids``."""

    def __init__(self, num_ids: int) -> None:
        self.num_ids = num_ids
        self.description = "toy"
        self._text: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """See ``PeerEngine``."""
        self._text = []
        for token in prompt:
            self._take(token)

    def step(self, token: int) -> int:
        """See ``PeerEngine``."""
        self._take(token)
        before = self._text[-2] if len(self._text) > 1 else 0
        return (token + 2 * before + 1) % self.num_ids

    def _take(self, token: int) -> None:
        if not 0 <= token < self.num_ids:
            raise BackendError(f"toy could not go on: id {token} is none of {self.num_ids}")
        self._text.append(token)


def kind(num_ids: int, name: str = "toy") -> PeerKind:
    """Of a vocabulary as large as the bundle's that it is compared with."""

    @contextmanager
    def open_toy(_model: PeerModel) -> Iterator[PeerEngine]:
        yield Toy(num_ids)

    return PeerKind(name, {".gguf": {}, "": {}}, open_toy)
