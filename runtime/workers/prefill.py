"""Feeding a prompt: chunks of one fixed split, alike for every mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.profiles import PROMPT_CHUNK, PROMPT_STEP, round_up
from runtime.backends.api import Session
from runtime.kv.layout import SlotLayout
from runtime.workers.calls import feed_one


def num_chunks(num_tokens: int) -> int:
    """Calls that feed so many tokens of a prompt."""
    return -(-num_tokens // PROMPT_CHUNK)


def prefill_chunk(
    session: Session, layout: SlotLayout, slot: int, start: int, chunk: Sequence[int]
) -> None:
    """Write the cache rows of one chunk, at most PROMPT_CHUNK tokens from position ``start`` on."""
    width = round_up(len(chunk), PROMPT_STEP)
    feed_one(session, layout, slot, start, chunk, width=width, num_logits=1)


def prefill(session: Session, layout: SlotLayout, slot: int, tokens: Sequence[int]) -> None:
    """Write the cache rows of ``tokens`` at positions 0, 1, ... of one slot."""
    for start in range(0, len(tokens), PROMPT_CHUNK):
        prefill_chunk(session, layout, slot, start, tokens[start : start + PROMPT_CHUNK])


def score_text(session: Session, layout: SlotLayout, tokens: Sequence[int]) -> np.ndarray:
    """Logits after each token of one text in slot 0, float32 [len(tokens), output vocabulary]."""
    parts = []
    for start in range(0, len(tokens), PROMPT_CHUNK):
        chunk = tokens[start : start + PROMPT_CHUNK]
        width = round_up(len(chunk), PROMPT_STEP)
        step = feed_one(session, layout, 0, start, chunk, width=width)
        parts.append(step.logits[0, : len(chunk)].copy())
    return np.concatenate(parts)
