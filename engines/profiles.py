"""The shapes an engine is called with, kept to a few so that they can be prepared once.

Attention pays for every cache row it is given (0.0034 ms a row on the default pair), so a call
binds the smallest bucket of rows that holds it. Growing by one bucket moves the cache once.
"""

from __future__ import annotations

from collections.abc import Sequence

PROMPT_CHUNK = 64
"""Tokens of a prompt that one call takes; a tail is padded to a multiple of ``PROMPT_STEP``.

Every mode splits a prompt alike: two splits may round differently and flip a tie.
"""
PROMPT_STEP = 16
ROW_STEP = 16


def round_up(value: int, step: int) -> int:
    """The smallest multiple of ``step`` that is at least ``value``."""
    return -(-value // step) * step


def trunk_rows(max_len: int, num_draft: int) -> int:
    """Cache rows for the text itself: max_len + K, padded so that a padded prompt tail fits.

    A write that reaches past the end fails as a whole (ONNX Runtime) or is dropped silently
    (TensorRT), so the capacity covers K tokens drafted at the very end of the text.
    """
    return round_up(max_len + num_draft, ROW_STEP)


def length_buckets(rows: int) -> tuple[int, ...]:
    """Row counts that are bound: steps of 64 up to 512, then of a quarter, and ``rows`` itself."""
    buckets: list[int] = []
    size = 64
    while size < rows:
        buckets.append(size)
        size += 64 if size < 512 else round_up(size // 4, 64)
    return (*buckets, rows)


def pick_bucket(buckets: Sequence[int], needed: int) -> int:
    """The smallest bucket that holds ``needed`` rows; ValueError when none does."""
    for size in buckets:
        if size >= needed:
            return size
    raise ValueError(f"{needed} cache rows needed, the largest bucket has {buckets[-1]}")
