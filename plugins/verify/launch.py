"""What queues the kernels of the layer ssd::Verify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plugins.law.launch import queue_slices, slice_bytes
from plugins.verify.args import ACCEPT_BEST, ARGS, BEST_ROWS, PARTIAL_BYTES

if TYPE_CHECKING:
    from plugins.launcher import Launchable
    from plugins.layer import DeviceTensor

NUM_ACCEPT_THREADS = 32


def scratch_bytes(shapes: Sequence[Sequence[int]]) -> int:
    """Bytes for the best ids of all slices, for logits [B, R, V] and all that are smaller."""
    return slice_bytes(shapes, PARTIAL_BYTES)


def enqueue(
    kernel: Launchable,
    inputs: Sequence[DeviceTensor],
    outputs: Sequence[DeviceTensor],
    stream: int,
    workspace: int,
) -> None:
    """Queue ssd::Verify: the best ids of the slices, then the drafts that equal them."""
    logits, drafts, num_draft = inputs
    addresses = {
        "drafts": drafts.address,
        "num_draft": num_draft.address,
        "partials": workspace,
        "accepted": outputs[0].address,
        "next": outputs[1].address,
    }
    values = queue_slices(kernel, BEST_ROWS, ARGS, logits, addresses, stream)
    if values is not None:
        kernel.launch(
            ACCEPT_BEST,
            values,
            num_blocks=logits.shape[0],
            num_threads=NUM_ACCEPT_THREADS,
            stream=stream,
        )
