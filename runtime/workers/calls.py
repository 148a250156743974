"""Filling in calls that continue a text on the trunk of a slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.backends.api import CallShape, Session, Step
from runtime.kv.layout import Lengths, SlotLayout, trunk_mask


def fill_trunk(step: Step, row: int, layout: SlotLayout, start: int, tokens: Sequence[int]) -> None:
    """Row ``row`` of the call feeds ``tokens`` at positions ``start``, ``start + 1``, ...

    Tokens beyond ``len(tokens)`` are padding: their cache rows lie beyond the text and are
    overwritten before anything attends them. ``logit_rows`` and ``num_draft`` are the caller's.
    """
    width = step.shape.num_tokens
    step.tokens[row] = 0
    step.tokens[row, : len(tokens)] = tokens
    step.positions[row] = np.arange(start, start + width)
    step.write_at[row] = layout.trunk_row(start)
    trunk_mask(step.mask[row], layout, start)


def place_rows(step: Step, layout: SlotLayout, starts: Lengths) -> None:
    """All rows of the call at once: row i feeds its tokens from position ``starts[i]`` on.

    Fills ``positions``, ``write_at`` and ``mask``; the rest is the caller's.
    """
    np.add(starts[:, None], np.arange(step.shape.num_tokens), out=step.positions)
    np.add(starts, layout.trunk_row(0), out=step.write_at)
    trunk_mask(step.mask, layout, starts)


def feed_one(
    session: Session,
    layout: SlotLayout,
    slot: int,
    start: int,
    tokens: Sequence[int],
    *,
    width: int | None = None,
    num_logits: int | None = None,
) -> Step:
    """Run one slot's tokens at ``start``, padded to ``width``; logits of the first ``num_logits``
    (default: all)."""
    num_tokens = width or len(tokens)
    num_logits = num_logits or num_tokens
    session.bind_rows(layout.rows_for(start + num_tokens))
    step = session.prepare(CallShape(slot, 1, num_tokens, num_logits))
    fill_trunk(step, 0, layout, start, tokens)
    step.logit_rows[0] = np.arange(num_logits)
    step.num_draft[0] = 0
    step.run()
    return step
