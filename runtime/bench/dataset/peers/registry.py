"""The engines that ``--peers`` knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engines.errors import UsageError
from runtime.bench.dataset.peers import llama_cpp, transformers
from runtime.bench.dataset.peers.api import Peer, PeerKind, PeerModel

PEERS: dict[str, PeerKind] = {kind.name: kind for kind in (llama_cpp.KIND, transformers.KIND)}


@contextmanager
def open_peer(name: str, model: PeerModel, vocab_size: int) -> Iterator[Peer]:
    """Raises BackendError, and UsageError where ids would not mean the same tokens."""
    with PEERS[name].open(model) as engine:
        if engine.num_ids != vocab_size:
            raise UsageError(
                f"--peer-model {model.path} has a vocabulary of {engine.num_ids}, the bundle one "
                f"of {vocab_size}; name the weights that the bundle was built from"
            )
        yield Peer(name, engine, model)
