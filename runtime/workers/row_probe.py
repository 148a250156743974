"""Is a cache row the same, bit by bit, whatever call wrote it? Asked when a bundle is loaded.

A text that goes on behind an earlier one's rows finds rows that verifications wrote, a few tokens
at a time, where its own prompt would have been fed in chunks that begin elsewhere. Its tokens are
those of a fresh text only if that makes no difference. ``runtime.workers.probe`` compares what
calls answer; here what they leave behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np

from engines.profiles import PROMPT_CHUNK, PROMPT_STEP, round_up
from runtime.backends.api import Session
from runtime.kv.layout import SlotLayout
from runtime.workers.calls import feed_one


def rows_are_alike(session: Session, num_tokens: int, *, min_tokens: int = 1) -> bool:
    """Compare the logits behind one text in slot 0 that was fed in prompt chunks, long and short,
    and in calls of verifications, of ``min_tokens`` to ``num_tokens`` (K + 1) tokens.

    Runs on the session's stream; the caches' contents are void afterwards.
    """
    vocab_size, max_len = session.manifest.model.vocab_size, session.manifest.limits.max_len
    draw = np.random.default_rng(20260303).integers
    # Longer than a chunk where there is room, and no multiple of anything.
    num = min(PROMPT_CHUNK + 2 * PROMPT_STEP + 5, max_len - 2)
    if num < 2:
        return True  # there is no room for anything to be kept
    text = draw(0, vocab_size, num).tolist()
    most = max(num_tokens, min_tokens)
    widths = range(min_tokens, most + 1)
    expected = _logits(session, text, [PROMPT_CHUNK], PROMPT_STEP)
    others = (
        _logits(session, text, [PROMPT_STEP], PROMPT_STEP),
        _logits(session, text, [3 * PROMPT_STEP, PROMPT_STEP], PROMPT_STEP),
        _logits(session, text, widths, min_tokens),
    )
    session.reset_rows()
    return all(np.array_equal(expected, found) for found in others)


def _logits(session: Session, text: Sequence[int], widths: Sequence[int], step: int) -> np.ndarray:
    """Logits [V] of the last token, all before it fed in calls of these widths in turn, each padded
    to a multiple of ``step``."""
    layout = SlotLayout(session.manifest.kv, 0)
    session.reset_rows()
    start, end, width = 0, len(text) - 1, cycle(widths)
    while start < end:
        part = text[start : min(start + next(width), end)]
        padded = round_up(len(part), step)
        feed_one(session, layout, 0, start, part, width=padded, num_logits=1)
        start += len(part)
    last = feed_one(session, layout, 0, end, [text[end], 0])
    return np.array(last.logits[0, 0])
