"""What queues the kernels of the layer ssd::Sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plugins.law.launch import queue_slices, slice_bytes
from plugins.sample.args import ARGS, BEST, TAKE

if TYPE_CHECKING:
    from plugins.launcher import Launchable
    from plugins.layer import DeviceTensor

NUM_TAKE_THREADS = 32
_KEY_BYTES = 8


def scratch_bytes(shapes: Sequence[Sequence[int]]) -> int:
    """Bytes for the best id of each slice, for logits [B, R, V] and all that are smaller."""
    return slice_bytes(shapes, _KEY_BYTES)


def enqueue(
    kernel: Launchable,
    inputs: Sequence[DeviceTensor],
    outputs: Sequence[DeviceTensor],
    stream: int,
    workspace: int,
) -> None:
    """Queue ssd::Sample: the best id of each slice, then that of each row."""
    logits, ids_map = inputs
    batch, rows, _ = logits.shape
    addresses = {
        "lists": workspace,
        "layer_map": ids_map.address,
        "sample": outputs[0].address,
    }
    values = queue_slices(kernel, BEST, ARGS, logits, addresses, stream)
    if values is not None:
        kernel.launch(
            TAKE, values, num_blocks=batch * rows, num_threads=NUM_TAKE_THREADS, stream=stream
        )
