"""Feeding a prompt: chunks of one fixed split, alike for every mode."""

from __future__ import annotations

from collections.abc import Sequence

from engines.profiles import PROMPT_CHUNK, PROMPT_STEP, round_up
from runtime.backends.api import CallShape, Session
from runtime.kv.layout import SlotLayout, trunk_mask


def prefill(session: Session, layout: SlotLayout, slot: int, tokens: Sequence[int]) -> None:
    """Write the cache rows of ``tokens`` at positions 0, 1, ... of one slot.

    A tail is padded to a multiple of PROMPT_STEP; the padding's rows lie beyond the text and are
    overwritten before anything attends them.
    """
    for start in range(0, len(tokens), PROMPT_CHUNK):
        chunk = tokens[start : start + PROMPT_CHUNK]
        width = round_up(len(chunk), PROMPT_STEP)
        session.bind_rows(layout.rows_for(start + width))
        step = session.prepare(CallShape(slot, 1, width, 1))
        step.tokens[0] = 0
        step.tokens[0, : len(chunk)] = chunk
        step.positions[0] = range(start, start + width)
        step.write_at[0] = layout.trunk_row(start)
        trunk_mask(step.mask[0], layout, start)
        step.logit_rows[0] = 0
        step.num_draft[0] = 0
        step.run()
