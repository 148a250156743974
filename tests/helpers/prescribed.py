"""Prescribed sessions with a short random text, for the suites that every backend passes."""

from __future__ import annotations

import numpy as np

from engines.manifest import TARGET, Limits
from runtime.backends.prescribed import PrescribedSession
from runtime.device.api import Device

VOCAB, DRAFT_VOCAB, TEXT_LEN = 12, 7, 50


def prescribed(role: str, device: Device) -> PrescribedSession:
    """A target that follows a text, or a draft of reduced vocabulary that does."""
    random = np.random.default_rng(5)
    size = VOCAB if role == TARGET else DRAFT_VOCAB
    ids = np.sort(random.permutation(VOCAB)[:DRAFT_VOCAB]).astype(np.int64)
    return PrescribedSession(
        role,
        random.normal(size=size).astype(np.float32),
        Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6),
        device,
        vocab_size=VOCAB,
        vocab_map=None if role == TARGET else ids,
        text=random.integers(0, size, TEXT_LEN),
    )
