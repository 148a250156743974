"""Forks as a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.fork.reference import STEPPED, Sizes, fork, keep, step

FORK, STEP, KEEP = "ssd_fork", "ssd_fork_step", "ssd_fork_keep"
NUM_THREADS = 64

ARGS = Args(
    Array("active", ("bool",)),
    Array("length", ("int64",)),
    Array("limit", ("int64",)),
    Array("generation", ("int64",)),
    Array("round", ("int64",)),
    Array("num_draft", ("int64",)),
    Array("fan_out", ("int32",)),
    Array("root_list", ("int64",)),
    Array("winner", ("int32",)),
    Array("branch_lists", ("int64",)),
    Array("chosen", ("int64",)),
    Array("candidates", ("int64",), is_output=True),
    Array("fork_tokens", ("int64",), is_output=True),
    Array("lengths", ("int64",), is_output=True),
    Array("cache_branches", ("int32",), is_output=True),
    Array("cache_depth", ("int32",), is_output=True),
    Array("cache_generation", ("int64",), is_output=True),
    Array("cache_round", ("int64",), is_output=True),
    Array("cache_accepted", ("int32",), is_output=True),
    Array("cache_bonus", ("int64",), is_output=True),
    Array("step_tokens", ("int64",), is_output=True),
    Array("step_positions", ("int64",), is_output=True),
    Array("step_write_at", ("int64",), is_output=True),
    Array("step_logit_rows", ("int64",), is_output=True),
    Number("num_rows"),
    Number("num_slots"),
    Number("num_branches"),
    Number("max_draft"),
    Number("num_ranks"),
    Number("draft_vocab"),
    Number("stride"),
    Number("depth"),
)


def values(
    arrays: Mapping[str, Any], num_rows: int, sizes: Sizes, *, num_slots: int, depth: int
) -> dict[str, Any]:
    """The fields of a launch: the arrays of its entry, as in `plugins.fork`, or their device
    addresses. ``depth`` is that of the cache for a fork, that of the call for a step."""
    numbers = asdict(sizes)
    numbers["max_draft"] = numbers.pop("num_draft")
    numbers |= {"num_rows": num_rows, "num_slots": num_slots, "depth": depth}
    return {**ARGS.blank(), **arrays, **numbers}


def _rows(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> dict[str, npt.NDArray[Any]]:
    """Rows of which some are dummies, at their limit, or short of candidates."""
    width = sizes.num_draft + 1
    length = rng.integers(1, 40, num_rows)
    top = rng.integers(0, 2 * sizes.draft_vocab, (num_rows, width, sizes.num_ranks))
    top[rng.random(top.shape) < 0.05] = -1
    return {
        "active": rng.random(num_rows) < 0.9,
        "length": length,
        "limit": length + rng.integers(1, 9, num_rows),
        "generation": rng.integers(1, 9, num_rows),
        "round": rng.integers(0, 9, num_rows),
        "num_draft": rng.integers(0, width, num_rows),
        "candidates": top,
    }


def fork_case(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> Case:
    """Fan-outs that fill the branches, leave some of them empty, or ask for too many."""
    width, branches = sizes.num_draft + 1, (num_rows, sizes.num_branches)
    arrays = _rows(rng, num_rows, sizes)
    most = 2 * sizes.num_branches // width + 1
    arrays["fan_out"] = rng.integers(0, most + 1, (width, width)).astype(np.int32)
    arrays["root_list"] = rng.integers(-1, sizes.draft_vocab, (num_rows, sizes.num_ranks + 1))
    for name, dtype in (("cache_branches", np.int32), ("cache_depth", np.int32)):
        arrays[name] = rng.integers(0, 9, num_rows).astype(dtype)
    for name in ("cache_generation", "cache_round"):
        arrays[name] = rng.integers(0, 9, num_rows)
    for name in ("fork_tokens", "lengths", "cache_bonus"):
        arrays[name] = rng.integers(0, 9, branches)
    arrays["cache_accepted"] = rng.integers(0, 9, branches).astype(np.int32)
    depth = int(rng.integers(0, width))
    return Case(
        values(arrays, num_rows, sizes, num_slots=num_rows, depth=depth),
        fork(arrays, sizes, depth),
        in_torch=_gather_in_torch,
    )


def step_case(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> Case:
    branches = (num_rows, sizes.num_branches)
    lengths = rng.integers(0, 40, branches)
    chosen = rng.integers(-1, 2 * sizes.draft_vocab, branches)
    depth = int(rng.integers(0, sizes.num_draft + 1))
    expected = step(lengths, chosen, sizes, depth)
    outputs = {name: np.full_like(expected[name], -7) for name in STEPPED}
    arrays = {"lengths": lengths, "chosen": chosen, **outputs}
    return Case(
        values(arrays, num_rows, sizes, num_slots=num_rows, depth=depth),
        expected,
        in_torch=lambda each: (each["chosen"].clamp(min=0), each["lengths"] + each["depth"]),
    )


def keep_case(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> Case:
    num_slots = num_rows + int(rng.integers(0, 3))
    arrays = _rows(rng, num_rows, sizes)
    arrays = {name: arrays[name] for name in ("num_draft", "candidates")}
    shape = (sizes.num_draft, num_slots, sizes.num_branches, sizes.num_ranks + 1)
    arrays["branch_lists"] = rng.integers(-1, 99, shape)
    arrays["winner"] = rng.integers(-1, sizes.num_branches, num_rows).astype(np.int32)
    return Case(
        values(arrays, num_rows, sizes, num_slots=num_slots, depth=0),
        {"candidates": keep(arrays)},
        in_torch=lambda each: each["branch_lists"][:, 0, each["winner"].clamp(min=0).long(), 1:],
    )


def _gather_in_torch(arrays: Mapping[str, Any]) -> object:
    """The outcomes by a mask over all candidates, which is most of what the kernel does."""
    candidates, drafted = arrays["candidates"], arrays["num_draft"]
    counts = arrays["fan_out"][drafted][..., None]
    ranks = candidates.new_ones(candidates.shape).cumsum(-1) - 1
    return candidates.masked_fill(ranks >= counts, -1).flatten(1), arrays["length"] + 1


def num_bytes(entry: str, num_rows: int, sizes: Sizes) -> int:
    """What an entry reads and writes where every row has all its branches and drafts."""
    width, branches, ranks = sizes.num_draft + 1, sizes.num_branches, sizes.num_ranks
    if entry == STEP:
        return num_rows * (5 * 8 * branches + 8)
    if entry == KEEP:
        return num_rows * (2 * 8 * sizes.num_draft * ranks + 4 + 8)
    read = 1 + 5 * 8 + 4 * width + 8 * ranks + 8 * branches
    written = 8 * ranks + (3 * 8 + 4) * branches + 2 * 4 + 2 * 8
    return num_rows * (read + written)


Make = Callable[[np.random.Generator, int, Sizes], Case]


def _trial(entry: str, make: Make, num_rows: int, num_branches: int, num_draft: int) -> Trial:
    sizes = Sizes(num_branches, num_draft, 16, 128256, num_branches)
    return Trial(
        label=f"{entry} B={num_rows} W={num_branches} K={num_draft}",
        entry=entry,
        num_blocks=num_rows,
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(entry, num_rows, sizes),
        make=lambda rng: make(rng, num_rows, sizes),
    )


_MAKERS: tuple[tuple[str, Make], ...] = ((FORK, fork_case), (STEP, step_case), (KEEP, keep_case))
KERNEL = Kernel(
    name="fork",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(FORK, STEP, KEEP),
    trials=tuple(
        _trial(entry, make, *size)
        for entry, make in _MAKERS
        for size in ((1, 16, 4), (16, 16, 4), (64, 64, 16))
    ),
)
