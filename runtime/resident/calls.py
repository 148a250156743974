"""Engine calls that the host fills in: a chunk of one text; and the mask of any trunk call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.profiles import PROMPT_STEP, round_up
from plugins.branch_mask import kernel as masks
from runtime.backends.api import CallShape, DeviceSession, DeviceStep
from runtime.kv.layout import SlotLayout
from runtime.resident.kernels import Work
from runtime.resident.phases import Phases


def feed_chunk(
    work: Work,
    session: DeviceSession,
    phases: Phases,
    layout: SlotLayout,
    slot: int,
    start: int,
    tokens: Sequence[int],
) -> None:
    """Enqueue the writing of one chunk's cache rows, from position ``start`` of a slot's text on.

    As ``runtime.workers.prefill`` does: the call is padded to a multiple of PROMPT_STEP.
    """
    width = round_up(len(tokens), PROMPT_STEP)
    session.bind_rows(layout.rows_for(start + width))
    step = phases.prepare(CallShape(slot, 1, width, 1))
    fed = np.zeros(width, np.int64)
    fed[: len(tokens)] = tokens
    work.put(
        [
            (step.tokens.address, fed),
            (step.positions.address, np.arange(start, start + width, dtype=np.int64)),
            (step.write_at.address, np.array([layout.trunk_row(start)], np.int64)),
            (step.logit_rows.address, np.zeros(1, np.int64)),
            (step.num_draft.address, np.zeros(1, np.int64)),
        ]
    )
    mask_trunk(work, step, layout)
    phases.enqueue(step)


def mask_trunk(work: Work, step: DeviceStep, layout: SlotLayout) -> None:
    """Enqueue the mask of a call that continues texts, from its ``write_at``."""
    batch, _, num_tokens, num_attended = step.mask.shape
    work.launch(
        "branch_mask",
        masks.TRUNK,
        {
            "positions": step.write_at.address,
            "mask": step.mask.address,
            "num_rows": batch,
            "num_tokens": num_tokens,
            "num_attended": num_attended,
            "scratch_rows": layout.kv.scratch_rows,
        },
        num_blocks=batch * num_tokens,
        num_threads=masks.NUM_THREADS,
    )


def mask_branches(
    work: Work, step: DeviceStep, layout: SlotLayout, lengths: int, depth: int
) -> None:
    """Enqueue the mask of a branch step; ``lengths`` int64 [B, W] is an address."""
    batch, _, num_tokens, num_attended = step.mask.shape
    work.launch(
        "branch_mask",
        masks.BRANCH,
        {
            "positions": lengths,
            "mask": step.mask.address,
            "num_rows": batch,
            "num_tokens": num_tokens,
            "num_attended": num_attended,
            "scratch_rows": layout.kv.scratch_rows,
            "num_branches": layout.num_branches,
            "depth": depth,
        },
        num_blocks=batch * num_tokens,
        num_threads=masks.NUM_THREADS,
    )
