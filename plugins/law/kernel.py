"""The law's two passes as a kernel: its arguments, its memory, its grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engines.errors import UsageError
from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.law.reference import LawParams, Sampling

BRACKETS, CUTS = "ssd_law_brackets", "ssd_law_cuts"
SUFFIXES: Mapping[str, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""An entry's name ends in the type of its logits: ``ssd_law_cuts_bf16``."""
NUM_THREADS = 256
WANTED_BLOCKS = 528
"""Four blocks of 256 threads on each multiprocessor of an H200."""

GROUP_SIZE, MAX_SLICE, MAX_VOCAB = 8, 32768, 2**20
NUM_BINS, MAX_COLLECTED = 512, 2048
BRACKET_BYTES, SLICE_BYTES = 56, 16

ROWS = (
    Array("logits", ("float32", "float16", "bfloat16", "uint16")),
    Array("drafts", ("int64",)),
    Array("num_draft", ("int64",)),
    Array("positions", ("int64",)),
    Number("num_sequences"),
    Number("rows_each"),
    Number("pitch"),
    Number("vocab_size"),
    Number("drafts_stride"),
    Number("position_offset"),
)
"""The struct LogitRows of row.cuh; ``uint16`` is the bits of bfloat16."""
PARAMS = (
    Array("temperature", ("float32",)),
    Array("top_k", ("int32",)),
    Array("top_p", ("float32",)),
    Array("min_p", ("float32",)),
    Array("seed", ("uint64",)),
    Array("first_position", ("int64",)),
    Array("edit_offsets", ("int32",)),
    Array("edit_ids", ("int32",)),
    Array("edit_bias", ("float32",)),
    Array("edit_generated", ("int32",)),
    Array("edit_in_prompt", ("bool", "uint8")),
    Array("repetition", ("float32",)),
    Array("presence", ("float32",)),
    Array("frequency", ("float32",)),
    Array("ban_before", ("int64",)),
    Array("ban_ids", ("int32",)),
    Number("num_bans"),
)
"""The struct LawParams of row.cuh, arrays [B]. The ``edit_`` arrays hold the lists of all
sequences, one behind the other, and ``edit_offsets`` [B+1] where each starts."""
ARGS = Args(
    *ROWS,
    *PARAMS,
    Array("brackets", is_output=True),
    Array("num_collected", ("uint32",), is_output=True),
    Array("slices", is_output=True),
    Array("counts", ("uint32",), is_output=True),
    Array("masses", ("uint64",), is_output=True),
    Array("open_ranks", ("uint64",), is_output=True),
    Array("tickets", ("uint32",), is_output=True),
    Array("cuts", ("uint64",), is_output=True),
    Array("peaks", ("float32",), is_output=True),
    Number("num_slices"),
)
SOURCE = Path(__file__).with_name("kernel.cu")


def params_of(samplings: Sequence[Sampling]) -> dict[str, Any]:
    """The fields of `PARAMS` for one sequence each; float32 stands for what it rounds to.

    Without penalties and bias in all of them the ``edit_`` arrays are None, which a kernel takes
    for the promise that there is none; the ``ban_`` arrays likewise.
    """
    laws, edits = [each.params for each in samplings], [each.edits for each in samplings]
    arrays: dict[str, Any] = {
        **_bans_of(samplings),
        "seed": np.array([each.seed for each in samplings], np.uint64),
        "first_position": np.array([each.first_position for each in samplings], np.int64),
        "top_k": np.array([each.top_k for each in laws], np.int32),
    }
    for name in ("temperature", "top_p", "min_p", "repetition", "presence", "frequency"):
        arrays[name] = np.array([getattr(each, name) for each in laws], np.float32)
    neutral = (1.0, 0.0, 0.0)
    penalties = [(each.repetition, each.presence, each.frequency) for each in laws]
    if all(each == neutral for each in penalties) and not any(each.ids.size for each in edits):
        names = ("offsets", "ids", "bias", "generated", "in_prompt")
        return arrays | {f"edit_{name}": None for name in names}
    sizes = [each.ids.size for each in edits]
    arrays["edit_offsets"] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    for name in ("ids", "bias", "generated", "in_prompt"):
        arrays[f"edit_{name}"] = np.concatenate([getattr(each, name) for each in edits])
    return arrays


def _bans_of(samplings: Sequence[Sampling]) -> dict[str, Any]:
    most = max(len(each.banned_ids) for each in samplings)
    if most == 0:
        return {"ban_before": None, "ban_ids": None, "num_bans": 0}
    ids = np.full((len(samplings), most), -1, np.int32)
    for row, each in zip(ids, samplings, strict=True):
        row[: len(each.banned_ids)] = each.banned_ids
    before = np.array([each.banned_before for each in samplings], np.int64)
    return {"ban_before": before, "ban_ids": ids, "num_bans": most}


def slices_of(num_rows: int, vocab_size: int) -> int:
    """Blocks a row: as many as make `WANTED_BLOCKS` of all rows, each with a tile to read at least.

    Raises UsageError on a vocabulary that the kernels do not take.
    """
    if not 1 <= vocab_size <= MAX_VOCAB:
        raise UsageError(f"the kernels take vocabularies of 1..{MAX_VOCAB}, found {vocab_size}")
    tiles = math.ceil(vocab_size / (GROUP_SIZE * NUM_THREADS))
    fewest = math.ceil(tiles / (MAX_SLICE // (GROUP_SIZE * NUM_THREADS)))
    # Rounded down: a few blocks more than the GPU holds would take a whole wave more.
    return min(max(WANTED_BLOCKS // num_rows, fewest, 1), tiles)


def workspace(num_rows: int, num_slices: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of what the passes share, for `num_rows` = B * R rows; uint8 holds structs.

    ``tickets`` is zero before the first launch, and one launch at a time uses a workspace: after a
    launch that was cut short it must be zeroed again. The rest needs no initial value.
    """
    return {
        "brackets": ((num_rows, BRACKET_BYTES), "uint8"),
        "num_collected": ((num_rows,), "uint32"),
        "slices": ((num_rows, num_slices, SLICE_BYTES), "uint8"),
        "counts": ((num_rows, num_slices, NUM_BINS), "uint32"),
        "masses": ((num_rows, num_slices, NUM_BINS), "uint64"),
        "open_ranks": ((num_rows, MAX_COLLECTED), "uint64"),
        "tickets": ((num_rows,), "uint32"),
    }


def random_case(
    rng: np.random.Generator,
    params: LawParams,
    *,
    num_rows: int,
    vocab_size: int,
    num_slices: int,
) -> Case:
    """Rows of bfloat16 logits that are all cut alike. The answer is their peaks: a cut is any
    rank between two ids, and what it keeps is tested where plain sorting is at hand."""
    logits = 3 * rng.standard_normal((num_rows, 1, vocab_size), np.float32)
    stored = (logits.view(np.uint32) >> 16).astype(np.uint16)
    memory = {**workspace(num_rows, num_slices)}
    memory |= {"cuts": ((num_rows,), "uint64"), "peaks": ((num_rows,), "float32")}
    values = {
        **ARGS.blank(),
        **params_of([Sampling(params)] * num_rows),
        **{name: np.zeros(shape, dtype) for name, (shape, dtype) in memory.items()},
        "logits": stored,
        "num_sequences": num_rows,
        "rows_each": 1,
        "pitch": vocab_size,
        "vocab_size": vocab_size,
        "num_slices": num_slices,
    }
    peaks = (stored.astype(np.uint32) << 16).view(np.float32).max(axis=(1, 2))
    return Case(values, {"peaks": peaks}, in_torch=_sorted_in_torch)


def _sorted_in_torch(fields: Mapping[str, Any]) -> object:
    """All ids by likelihood, and their running mass."""
    import torch

    logits = fields["logits"].view(torch.bfloat16).float()
    ordered = (logits / fields["temperature"][:, None, None]).sort(-1, descending=True)
    return ordered.indices, ordered.values.softmax(-1).cumsum(-1)


def _trial(num_rows: int, vocab_size: int) -> Trial:
    params = LawParams(temperature=0.75, top_k=1000, top_p=0.9375)
    num_slices = slices_of(num_rows, vocab_size)
    return Trial(
        label=f"top-k and top-p, rows={num_rows} V={vocab_size}",
        entry=f"{CUTS}_bf16",
        first=(f"{BRACKETS}_bf16",),
        num_blocks=num_rows * num_slices,
        num_threads=NUM_THREADS,
        num_bytes=2 * num_rows * vocab_size * 2,
        make=lambda rng: random_case(
            rng, params, num_rows=num_rows, vocab_size=vocab_size, num_slices=num_slices
        ),
    )


KERNEL = Kernel(
    name="law",
    source=SOURCE,
    args=ARGS,
    entries=tuple(f"{each}_{suffix}" for each in (BRACKETS, CUTS) for suffix in SUFFIXES.values()),
    trials=(_trial(3, 4000), _trial(5, 128256), _trial(80, 128256)),
)
