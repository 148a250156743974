"""What queues the kernels of the layer ssd::Verify."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugins.cuda.args import Number
from plugins.law.kernel import MAX_SLICE, NUM_THREADS, SUFFIXES, WANTED_BLOCKS, slices_of
from plugins.verify.args import ACCEPT_BEST, ARGS, BEST_ROWS, PARTIAL_BYTES

if TYPE_CHECKING:
    from plugins.launcher import Launchable
    from plugins.layer import DeviceTensor

NUM_ACCEPT_THREADS = 32


def scratch_bytes(shapes: Sequence[Sequence[int]]) -> int:
    """Bytes for the best ids of all slices, for logits [B, R, V] and all that are smaller."""
    batch, rows, vocab_size = shapes[0]
    num_rows = batch * rows
    fewest = math.ceil(vocab_size / MAX_SLICE)
    return max(WANTED_BLOCKS + num_rows, num_rows * fewest) * PARTIAL_BYTES


def enqueue(
    kernel: Launchable,
    inputs: Sequence[DeviceTensor],
    outputs: Sequence[DeviceTensor],
    stream: int,
    workspace: int,
) -> None:
    """Queue ssd::Verify: the best ids of the slices, then the drafts that equal them."""
    logits, drafts, num_draft = inputs
    batch, rows, vocab_size = logits.shape
    num_rows = batch * rows
    if num_rows == 0:
        return  # a grid has at least one block
    num_slices = slices_of(num_rows, vocab_size)
    values: dict[str, Any] = {
        each.name: 0 if isinstance(each, Number) else None for each in ARGS.fields
    }
    values |= {
        "logits": logits.address,
        "drafts": drafts.address,
        "num_draft": num_draft.address,
        "num_sequences": batch,
        "rows_each": rows,
        "pitch": vocab_size,
        "vocab_size": vocab_size,
        "num_slices": num_slices,
        "partials": workspace,
        "accepted": outputs[0].address,
        "next": outputs[1].address,
    }
    kernel.launch(
        f"{BEST_ROWS}_{SUFFIXES[logits.dtype]}",
        values,
        num_blocks=num_rows * num_slices,
        num_threads=NUM_THREADS,
        stream=stream,
    )
    kernel.launch(
        ACCEPT_BEST, values, num_blocks=batch, num_threads=NUM_ACCEPT_THREADS, stream=stream
    )
