"""The shapes an engine is called with, kept to a few so that they can be prepared once.

Attention pays for every cache row it is given (0.0034 ms a row on the default pair), so a call
binds the smallest bucket of rows that holds it. Growing by one bucket moves the cache once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    (TensorRT), so the capacity covers K tokens drafted at the very end of the text. It is at least
    a prompt chunk: TensorRT-RTX 1.7 crashes when a call may have more tokens than the cache has
    rows, and refuses to compile some engines that attend to 32 rows or fewer.
    """
    return max(PROMPT_CHUNK, round_up(max_len + num_draft, ROW_STEP))


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


@dataclass(frozen=True, slots=True)
class Span:
    """What a dimension may be in one profile, and the value the kernels are chosen for."""

    least: int
    typical: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.typical <= self.most:
            raise ValueError(f"{self.least} <= {self.typical} <= {self.most} does not rise from 1")

    def holds(self, value: int) -> bool:
        return self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class ShapeProfile:
    """One kind of call an ahead-of-time engine was compiled for.

    ``name`` is prompt, step (plain decoding, root), verify or branch; dimensions as in
    ``engines.tensors``: B = batch, T = tokens, R = logits, L = length.
    """

    name: str
    batch: Span
    tokens: Span
    logits: Span
    length: Span

    def span(self, symbol: str) -> Span:
        """What a named dimension (B, T, R or L) may be. KeyError for another name."""
        spans = {"B": self.batch, "T": self.tokens, "R": self.logits, "L": self.length}
        return spans[symbol]

    def holds(self, *, batch: int, tokens: int, logits: int, length: int) -> bool:
        """Whether a call of these sizes fits."""
        return (
            self.batch.holds(batch)
            and self.tokens.holds(tokens)
            and self.logits.holds(logits)
            and self.length.holds(length)
        )


def shape_profiles(
    role: str, *, max_batch: int, num_draft: int, max_branches: int, rows: int
) -> tuple[ShapeProfile, ...]:
    """The profiles a compiled engine needs, most used first.

    target: step T = R = 1..2, verify T = R = 2..K + 1, prompt. draft: step T = 1..K + 1 (root pass
    and just-in-time drafting), branch T = R = 1..W of all slots at once, prompt. A prompt is fed
    one slot at a time in chunks; R up to the chunk, for scoring.

    Some spans are wider than what is called, for TensorRT-RTX 1.7: L begins at 1, since it refuses
    narrow ranges ("more than one op named ..._iota"); B of one slot may be 2, since an engine in
    which B is fixed here and free there holds two copies of its matrices.
    """
    length = Span(1, min(512, rows), rows)
    batch = Span(1, max_batch, max_batch)
    one_slot = Span(1, 1, min(2, max_batch))
    chunk = Span(PROMPT_STEP, PROMPT_CHUNK, PROMPT_CHUNK)
    prompt = ShapeProfile("prompt", one_slot, chunk, Span(1, 1, PROMPT_CHUNK), length)
    profiles = []
    if role == "target":
        profiles.append(ShapeProfile("step", batch, Span(1, 1, 2), Span(1, 1, 2), length))
        if num_draft:
            block = Span(2, num_draft + 1, num_draft + 1)
            profiles.append(ShapeProfile("verify", batch, block, block, length))
    else:
        root = Span(1, 1, num_draft + 1)
        profiles.append(ShapeProfile("step", batch, root, root, length))
        if num_draft and max_branches:
            width = Span(1, max_branches, max_branches)
            profiles.append(ShapeProfile("branch", batch, width, width, length))
    return (*profiles, prompt)
