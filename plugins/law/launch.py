"""What the greedy layers share: a first launch that finds the best id of each slice of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugins.cuda.args import Args
from plugins.law.kernel import MAX_SLICE, NUM_THREADS, SUFFIXES, WANTED_BLOCKS, slices_of

if TYPE_CHECKING:
    from plugins.launcher import Launchable
    from plugins.layer import DeviceTensor


def slice_bytes(shapes: Sequence[Sequence[int]], item_bytes: int) -> int:
    """Bytes for an item a slice, for logits [B, R, V] (the first shape) and all smaller ones."""
    batch, rows, vocab_size = shapes[0]
    num_rows = batch * rows
    fewest = math.ceil(vocab_size / MAX_SLICE)
    return max(WANTED_BLOCKS + num_rows, num_rows * fewest) * item_bytes


def queue_slices(
    kernel: Launchable,
    entry: str,
    args: Args,
    logits: DeviceTensor,
    addresses: dict[str, int],
    stream: int,
) -> dict[str, Any] | None:
    """Queue ``entry`` for the type of ``logits`` [B, R, V]; ``addresses`` are the other fields.

    Returns the struct's values, for the launch that follows; None where there are no rows, and
    nothing is queued: a grid has at least one block.
    """
    batch, rows, vocab_size = logits.shape
    num_rows = batch * rows
    if num_rows == 0:
        return None
    num_slices = slices_of(num_rows, vocab_size)
    values = {
        **args.blank(),
        "logits": logits.address,
        "num_sequences": batch,
        "rows_each": rows,
        "pitch": vocab_size,
        "vocab_size": vocab_size,
        "num_slices": num_slices,
        **addresses,
    }
    kernel.launch(
        f"{entry}_{SUFFIXES[logits.dtype]}",
        values,
        num_blocks=num_rows * num_slices,
        num_threads=NUM_THREADS,
        stream=stream,
    )
    return values
