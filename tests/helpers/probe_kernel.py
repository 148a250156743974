"""The kernels of tests/plugins/cuda/primitives.cu: one use of the block context each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from plugins.cuda.args import Args, Array, Number
from plugins.cuda.host import HostKernel
from plugins.cuda.kernel import Case, Kernel, Trial

SOURCE = Path(__file__).parents[1] / "plugins" / "cuda" / "primitives.cu"
FAULTY = SOURCE.with_name("faulty.cu")
ARGS = Args(
    Array("in"),
    Array("out", is_output=True),
    Array("workspace", is_output=True),
    Array("tickets", ("uint32",), is_output=True),
    Number("count"),
    Number("blocks_per_row"),
)
FAULTY_ARGS = Args(Array("out", ("int32",), is_output=True))
PARTIAL_ROW = np.dtype(
    [("score", np.float32), ("id", np.int32), ("num_visited", np.int32), ("sum", np.float32)]
)
NUM_BLOCKS, NUM_THREADS = 6, 32


def launch(probe: HostKernel, entry: str, grid: tuple[int, int, int], **fields: Any) -> None:
    """Run an entry on a grid of (threads, blocks, concurrent blocks)."""
    num_threads, num_blocks, num_concurrent = grid
    nothing = {"workspace": None, "tickets": None, "count": 0, "blocks_per_row": 1}
    probe.launch(
        entry,
        {**nothing, **fields},
        num_threads=num_threads,
        num_blocks=num_blocks,
        num_concurrent=num_concurrent,
    )


def _counts(rng: np.random.Generator) -> Case:
    """How often each number below 16 comes, and all their bits."""
    values = 2 * rng.integers(0, 8, 500).astype(np.uint32)
    return Case(
        values={
            "in": values,
            "out": np.zeros(16, np.uint32),
            "workspace": np.zeros(1, np.uint32),
            "tickets": np.zeros(1, np.uint32),
            "count": len(values),
            "blocks_per_row": 1,
        },
        expected={
            "out": np.bincount(values, minlength=16).astype(np.uint32),
            "workspace": np.bitwise_or.reduce(values, keepdims=True),
        },
        in_torch=lambda fields: fields["in"].sum(),
    )


def _row_best(rng: np.random.Generator) -> Case:
    """Two rows over three blocks each, which meet at a ticket."""
    num_rows, blocks_per_row, count = 2, NUM_BLOCKS // 2, 1001
    values = rng.integers(-50, 50, (num_rows, count)).astype(np.float16)
    expected = np.zeros(num_rows, PARTIAL_ROW)
    expected["id"], expected["score"] = values.argmax(1), values.max(1)
    expected["num_visited"], expected["sum"] = count, values.astype(np.float32).sum(1)
    return Case(
        values={
            "in": values,
            "out": np.zeros(num_rows * 4, np.int32),
            "workspace": np.zeros(num_rows * blocks_per_row * 4, np.int32),
            "tickets": np.zeros(num_rows, np.uint32),
            "count": count,
            "blocks_per_row": blocks_per_row,
        },
        expected={"out": expected.view(np.int32), "tickets": np.zeros(num_rows, np.uint32)},
    )


KERNEL = Kernel(
    name="probe",
    source=SOURCE,
    args=ARGS,
    entries=("probe_histogram", "probe_row_best_f16"),
    trials=(
        Trial("counts", "probe_histogram", NUM_BLOCKS, NUM_THREADS, 2064, _counts),
        Trial("best", "probe_row_best_f16", NUM_BLOCKS, NUM_THREADS, 4800, _row_best),
    ),
)
