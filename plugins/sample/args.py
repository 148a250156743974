"""Drafting as a kernel: its arguments, its memory, what it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from plugins.cuda.args import Args, Array, Number
from plugins.law import kernel as law
from plugins.law.reference import Sampling
from plugins.sample.sampled import MAX_CANDIDATES, MAX_SUPPORT, IdsMap, Reshaping

IntArray = npt.NDArray[np.int64]
Shapes = dict[str, tuple[tuple[int, ...], str]]

BRACKETS, SAMPLE = "ssd_sample_brackets", "ssd_sample"
BEST, TAKE = "ssd_sample_best", "ssd_sample_take"
NUM_THREADS = 128

ARGS = Args(
    *law.ARGS.fields,
    Array("ids_map", ("int32",)),
    Array("exclude", ("int64",)),
    Array("shape_top", ("int32",)),
    Array("shape_scale", ("float32",)),
    Array("lists", ("uint64",), is_output=True),
    Array("sample", ("int64",), is_output=True),
    Array("candidates", ("int64",), is_output=True),
    Array("q_ids", ("int32",), is_output=True),
    Array("q_probs", ("float64",), is_output=True),
    Array("status", ("int32",), is_output=True),
    Array("layer_map", ("int64",)),
    Number("list_size"),
    Number("num_candidates"),
    Number("max_support"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one launch drafts: B sequences of R places, with the draft's logits for each.

    logits          float32, float16, or the bits of bfloat16 as uint16, [B, R, V]
    samplings       [B]; edits and bans in draft ids, `first_position` is not read
    positions       int64 [B, R], of the tokens in their sequences
    num_candidates  F, at most MAX_CANDIDATES
    max_support     M of the ratio rule, 1..MAX_SUPPORT; 0 is the coupled rule
    vocab_size      the real one where V is padded; None: V
    ids_map         int32 [V], target ids, no id twice; None where they are the same
    exclude         int64 [B, R], target ids known not to be the bonus token, -1 for none
    reshapings      [B], of the ratio rule
    """

    logits: npt.NDArray[Any]
    samplings: Sequence[Sampling]
    positions: IntArray
    num_candidates: int
    max_support: int = 0
    vocab_size: int | None = None
    ids_map: IdsMap | None = None
    exclude: IntArray | None = None
    reshapings: Sequence[Reshaping] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.logits.shape[0] * self.logits.shape[1])

    @property
    def suffix(self) -> str:
        """What the names of the entries for these logits end in."""
        return "bf16" if self.logits.dtype == np.uint16 else law.SUFFIXES[self.logits.dtype.name]

    @property
    def truncates(self) -> bool:
        """True when the law's first pass has to be launched before."""
        return any(each.params.truncates for each in self.samplings)


def list_size(num_candidates: int, max_support: int) -> int:
    """Ids that a row ranks: the candidates, one that may be excluded, and the law's support.

    Raises UsageError on more than the kernel can rank.
    """
    if not 0 <= num_candidates <= MAX_CANDIDATES:
        raise UsageError(f"candidates must number 0..{MAX_CANDIDATES}, found {num_candidates}")
    if not 0 <= max_support <= MAX_SUPPORT:
        raise UsageError(f"a draft law may have 0..{MAX_SUPPORT} ids, found {max_support}")
    return max(num_candidates + 1, max_support)


def workspace(num_rows: int, num_slices: int, num_ranked: int) -> Shapes:
    """Shape and dtype of a launch's scratch memory beside `law.workspace`; no initial value.

    Args:
        num_ranked: see `list_size`.
    """
    return {"lists": ((num_rows, num_slices + 1, num_ranked), "uint64")}


def outputs(num_rows: int, num_candidates: int, max_support: int) -> Shapes:
    """Shape and dtype of what a launch writes, a row for each place."""
    return {
        "sample": ((num_rows,), "int64"),
        "candidates": ((num_rows, num_candidates), "int64"),
        "q_ids": ((num_rows, max_support), "int32"),
        "q_probs": ((num_rows, max_support), "float64"),
        "status": ((num_rows,), "int32"),
    }


def num_bytes(
    num_rows: int,
    vocab_size: int,
    *,
    num_candidates: int,
    max_support: int = 0,
    itemsize: int = 2,
    is_reduced: bool = False,
) -> int:
    """What must cross the memory bus where no row truncates: logits, map, positions, excluded ids
    and outputs. Truncation reads the logits once more. Workspace is small enough for the cache."""
    written = sum(
        int(np.prod(shape)) * np.dtype(dtype).itemsize
        for shape, dtype in outputs(num_rows, num_candidates, max_support).values()
    )
    read = num_rows * (vocab_size * itemsize + 8 + 8)
    return read + written + (4 * vocab_size if is_reduced else 0)


def values(batch: Batch, num_slices: int) -> dict[str, Any]:
    """The fields of a launch; memory that needs no initial value holds zeros."""
    sequences, places, pitch = batch.logits.shape
    ranked = list_size(batch.num_candidates, batch.max_support)
    scan = law.workspace(batch.num_rows, num_slices)
    if not batch.truncates:
        scan = {"tickets": scan["tickets"]}
    shapes = scan | workspace(batch.num_rows, num_slices, ranked)
    shapes |= outputs(batch.num_rows, batch.num_candidates, batch.max_support)
    reshapings = batch.reshapings
    return {
        **ARGS.blank(),
        **law.params_of(batch.samplings),
        **{name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()},
        "logits": batch.logits,
        "num_sequences": sequences,
        "rows_each": places,
        "pitch": pitch,
        "vocab_size": pitch if batch.vocab_size is None else batch.vocab_size,
        "num_slices": num_slices,
        "positions": batch.positions,
        "ids_map": batch.ids_map,
        "exclude": batch.exclude,
        "shape_top": reshapings and np.array([each.top for each in reshapings], np.int32),
        "shape_scale": reshapings and np.array([each.scale for each in reshapings], np.float32),
        "list_size": ranked,
        "num_candidates": batch.num_candidates,
        "max_support": batch.max_support,
    }
