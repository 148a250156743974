"""Launches of the law and verify kernels in their host form, on plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plugins.cuda import host
from plugins.law import kernel as law
from plugins.law.reference import Sampling
from plugins.verify import args as verify
from plugins.verify.sampled import Outcome

SUFFIXES = {"float32": "f32", "float16": "f16", "uint16": "bf16"}


@dataclass(frozen=True)
class Grid:
    """How a launch is cut up; results must not depend on it."""

    num_slices: int = 1
    num_threads: int = 1
    num_concurrent: int = 1

    def launch(self, kernel: host.HostKernel, entry: str, values: Mapping, num_rows: int) -> None:
        kernel.launch(
            entry,
            values,
            num_blocks=num_rows * self.num_slices,
            num_threads=self.num_threads,
            num_concurrent=self.num_concurrent,
        )


SMALLEST = Grid()
"""One block of one thread a row."""


@dataclass
class Block:
    """A batch of drafted blocks: logits [B, R, V] float32, float16 or the bits of bfloat16."""

    logits: np.ndarray
    samplings: Sequence[Sampling]
    drafts: np.ndarray | None = None
    num_draft: np.ndarray | None = None
    vocab_size: int | None = None
    q_ids: np.ndarray | None = None
    q_probs: np.ndarray | None = None
    scratch: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch, rows, pitch = self.logits.shape
        if self.drafts is None:
            self.drafts = np.zeros((batch, rows - 1), np.int64)
        if self.num_draft is None:
            self.num_draft = np.full(batch, rows - 1, np.int64)
        if self.vocab_size is None:
            self.vocab_size = pitch

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0] * self.logits.shape[1]

    @property
    def suffix(self) -> str:
        return SUFFIXES[self.logits.dtype.name]

    def inputs(self, num_slices: int) -> dict[str, Any]:
        batch, rows, pitch = self.logits.shape
        return {
            "logits": self.logits,
            "drafts": self.drafts,
            "num_draft": self.num_draft,
            "num_sequences": batch,
            "rows_each": rows,
            "pitch": pitch,
            "vocab_size": self.vocab_size,
            "positions": None,
            "drafts_stride": 0,
            "position_offset": 0,
            "num_slices": num_slices,
            **law.params_of(self.samplings),
        }


def memory(shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    """Tickets are zero, and whatever else a launch finds in its memory must not matter."""
    arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
    for name, array in arrays.items():
        array.view(np.uint8)[...] = 0 if "tickets" in name else 0xA5
    return arrays


def find_brackets(kernel: host.HostKernel, block: Block, grid: Grid) -> dict[str, Any]:
    """The law's first pass; the values that its second pass takes too."""
    values = block.inputs(grid.num_slices)
    values |= memory(law.workspace(block.num_rows, grid.num_slices))
    values |= {"cuts": np.zeros(block.num_rows, np.uint64)}
    values |= {"peaks": np.zeros(block.num_rows, np.float32)}
    grid.launch(kernel, f"{law.BRACKETS}_{block.suffix}", values, block.num_rows)
    return values


def find_cuts(kernel: host.HostKernel, block: Block, grid: Grid) -> dict[str, Any]:
    """Both passes."""
    values = find_brackets(kernel, block, grid)
    grid.launch(kernel, f"{law.CUTS}_{block.suffix}", values, block.num_rows)
    assert not values["tickets"].any()
    return values


def judge(
    kernel: host.HostKernel,
    entry: str,
    block: Block,
    grid: Grid,
    with_brackets: bool = True,
    **fields: Any,
) -> Outcome:
    """A rule's verdict on a block. Without brackets no first pass is launched; ``fields`` are
    launched in place of the block's own."""
    batch, rows, _ = block.logits.shape
    values = block.inputs(grid.num_slices)
    values |= memory(law.workspace(block.num_rows, grid.num_slices))
    values |= memory(
        verify.workspace(batch, rows, block.vocab_size, grid.num_slices, grid.num_threads)
    )
    values |= {
        "cuts": None,
        "peaks": None,
        "q_ids": block.q_ids,
        "q_probs": block.q_probs,
        "support": 0 if block.q_ids is None else block.q_ids.shape[-1],
        "accepted": np.full(batch, -9, np.int64),
        "next": np.full(batch, -9, np.int64),
        "status": np.full(batch, -9, np.int32),
        **fields,
    }
    if with_brackets:
        grid.launch(kernel, f"{verify.BRACKETS}_{block.suffix}", values, block.num_rows)
    else:
        values["brackets"] = None
    grid.launch(kernel, f"{entry}_{block.suffix}", values, block.num_rows)
    assert not values["tickets"].any()
    assert not values["sequence_tickets"].any()
    return Outcome(values["accepted"], values["next"], values["status"].astype(np.int64))
