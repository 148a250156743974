"""What queues the kernels of the layer ssd::Sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugins.cuda.args import Number
from plugins.law.kernel import MAX_SLICE, NUM_THREADS, SUFFIXES, WANTED_BLOCKS, slices_of
from plugins.sample.args import ARGS, BEST, TAKE

if TYPE_CHECKING:
    from plugins.launcher import Launchable
    from plugins.layer import DeviceTensor

NUM_TAKE_THREADS = 32
_KEY_BYTES = 8


def scratch_bytes(shapes: Sequence[Sequence[int]]) -> int:
    """Bytes for the best id of each slice, for logits [B, R, V] and all that are smaller."""
    batch, rows, vocab_size = shapes[0]
    num_rows = batch * rows
    fewest = math.ceil(vocab_size / MAX_SLICE)
    return max(WANTED_BLOCKS + num_rows, num_rows * fewest) * _KEY_BYTES


def enqueue(
    kernel: Launchable,
    inputs: Sequence[DeviceTensor],
    outputs: Sequence[DeviceTensor],
    stream: int,
    workspace: int,
) -> None:
    """Queue ssd::Sample: the best id of each slice, then that of each row."""
    logits, ids_map = inputs
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
        "num_sequences": batch,
        "rows_each": rows,
        "pitch": vocab_size,
        "vocab_size": vocab_size,
        "num_slices": num_slices,
        "lists": workspace,
        "layer_map": ids_map.address,
        "sample": outputs[0].address,
    }
    kernel.launch(
        f"{BEST}_{SUFFIXES[logits.dtype]}",
        values,
        num_blocks=num_rows * num_slices,
        num_threads=NUM_THREADS,
        stream=stream,
    )
    kernel.launch(TAKE, values, num_blocks=num_rows, num_threads=NUM_TAKE_THREADS, stream=stream)
