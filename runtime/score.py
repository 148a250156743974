"""Plain causal scoring of texts, for checking a build against its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from engines.bundle import open_bundle
from engines.errors import UsageError
from engines.manifest import DRAFT, TARGET
from runtime.backends.onnxruntime import OrtSession
from runtime.device.cores import available_cores
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.request import read_prompt
from runtime.workers.prefill import score_text


def score(bundle: Path, role: str, ids: Sequence[int]) -> np.ndarray:
    """An engine's logits after each of ``ids``, float32 [len(ids), output vocabulary].

    ``role`` is "target" or "draft".
    """
    with scorer(bundle, role) as read:
        return read(ids)


@contextmanager
def scorer(bundle: Path, role: str) -> Iterator[Callable[[Sequence[int]], np.ndarray]]:
    """``score`` for many texts by one engine, which is loaded once; it is freed at the end."""
    if role not in (TARGET, DRAFT):
        raise UsageError(f"role is {role!r}, expected {TARGET!r} or {DRAFT!r}")
    opened = open_bundle(bundle)
    manifest = opened.target if role == TARGET else opened.draft
    if manifest is None:
        raise UsageError(f"{bundle} has no draft to score with")
    limit, vocab_size = manifest.limits.max_len, manifest.model.vocab_size
    layout = SlotLayout(manifest.kv, opened.manifest.limits.max_branches if role == DRAFT else 0)
    device = HostDevice()
    try:
        session = OrtSession(
            opened.path / role, manifest, device, num_threads=len(available_cores()), num_slots=1
        )
        session.load()

        def read(ids: Sequence[int]) -> np.ndarray:
            tokens = read_prompt(ids, max_len=limit, vocab_size=vocab_size)
            return score_text(session, layout, tokens)

        yield read
    finally:
        device.close()
