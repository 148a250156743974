"""The lookup as a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.lookup.reference import OUTPUTS, Kind, Sizes, lookup, shapes

ENTRY = "ssd_lookup"
NUM_THREADS = 64

_ANY_SIZES = Sizes(1, 1, 1, 0, 0)
ARGS = Args(
    *(Array(name, (dtype,), name in OUTPUTS) for name, (dtype, _) in shapes(1, _ANY_SIZES).items()),
    Number("num_rows"),
    Number("num_slots"),
    Number("num_ranks"),
    Number("num_branches"),
    Number("max_draft"),
    Number("draft_vocab"),
    Number("target_scratch"),
    Number("draft_scratch"),
)

_READ_AND_WRITTEN = {
    *("cache_branches", "round", "active", "length", "kind"),
    *("verify_tokens", "num_draft"),
}


def values(
    arrays: Mapping[str, Any], num_rows: int, sizes: Sizes, num_slots: int | None = None
) -> dict[str, Any]:
    """The fields of a launch: `arrays` as in `plugins.lookup`, or their device addresses.

    There are as many slots as rows unless `num_slots` says so.
    """
    numbers = asdict(sizes)
    numbers["max_draft"] = numbers.pop("num_draft")
    return {**arrays, **numbers, "num_rows": num_rows, "num_slots": num_slots or num_rows}


def num_bytes(num_rows: int, sizes: Sizes) -> int:
    """What a lookup reads and writes: of the cached tokens, one branch's, of the candidates, one
    place's."""
    total = 0
    for name, (dtype, shape) in shapes(num_rows, sizes).items():
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name == "cache_tokens":
            size //= sizes.num_branches
        if name == "candidates":
            size //= sizes.num_draft + 1
        total += 2 * size if name in _READ_AND_WRITTEN else size
    return total


def random_arrays(
    rng: np.random.Generator,
    num_rows: int,
    sizes: Sizes,
    hit_rate: float = 0.7,
    num_slots: int | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays as a round could leave them; about `hit_rate` of the fresh rows hit, some rows are
    dummies, near their limit or at it, or hold a stale cache."""
    arrays = {
        name: rng.integers(0, 9, shape).astype(dtype)
        for name, (dtype, shape) in shapes(num_rows, sizes, num_slots).items()
    }
    branches, depth = sizes.num_branches, sizes.num_draft
    arrays["active"][:] = rng.random(num_rows) < 0.9
    arrays["num_draft"][:] = rng.integers(0, depth + 1, num_rows)
    arrays["kind"][:] = np.where(arrays["num_draft"] > 0, Kind.HIT, rng.integers(0, 2, num_rows))
    arrays["accepted"][:] = rng.integers(0, arrays["num_draft"] + 1)
    arrays["bonus"][:] = rng.integers(0, sizes.draft_vocab + 3, num_rows)
    arrays["length"][:] = rng.integers(1, 40, num_rows)
    longest = arrays["length"] + arrays["num_draft"] + 1  # that this round can make of a text
    arrays["limit"][:] = longest + rng.integers(0, depth + 2, num_rows)
    at_limit = rng.random(num_rows) < 0.2
    arrays["limit"][at_limit] = longest[at_limit]
    arrays["accepted"][at_limit] = arrays["num_draft"][at_limit]
    arrays["cache_branches"][:] = rng.integers(0, branches + 1, num_rows)
    arrays["cache_depth"][:] = rng.integers(0, depth + 1, num_rows)
    arrays["cache_accepted"][:] = rng.integers(0, depth + 1, (num_rows, branches))
    for name in ("cache_tokens", "candidates"):
        arrays[name][:] = rng.integers(0, sizes.draft_vocab + 3, arrays[name].shape)
    # No id stands twice among a place's candidates.
    is_again = np.triu(arrays["candidates"][..., None] == arrays["candidates"][..., None, :], 1)
    arrays["candidates"][is_again.any(-2)] = -1
    arrays["status"][:] = rng.integers(0, 4, num_rows)
    for name in ("generation", "round"):
        is_stale = rng.random(num_rows) < 0.1
        arrays[f"cache_{name}"][:] = arrays[name] - is_stale
    for row in np.flatnonzero(rng.random(num_rows) < hit_rate):
        branch = rng.integers(0, branches)
        arrays["cache_branches"][row] = max(arrays["cache_branches"][row], branch + 1)
        arrays["cache_accepted"][row, branch] = arrays["accepted"][row]
        arrays["cache_bonus"][row, branch] = arrays["bonus"][row]
    return arrays


def make_case(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> Case:
    num_slots = num_rows + int(rng.integers(0, 3))
    arrays = random_arrays(rng, num_rows, sizes, num_slots=num_slots)
    return Case(
        values=values(arrays, num_rows, sizes, num_slots),
        expected=lookup(arrays, sizes),
        in_torch=_in_torch,
    )


def _in_torch(arrays: Mapping[str, Any]) -> object:
    """The search and the gather alone, which is less than the kernel does."""
    matches = (arrays["cache_accepted"] == arrays["accepted"][:, None]) & (
        arrays["cache_bonus"] == arrays["bonus"][:, None]
    )
    best = matches.int().argmax(1)
    cache = arrays["cache_tokens"][:, : len(best)]
    tokens = cache.gather(2, best[None, :, None].expand(len(cache), -1, 1))
    return tokens, matches.any(1), arrays["length"] + arrays["accepted"] + 1


def _trial(num_rows: int, num_branches: int, num_draft: int) -> Trial:
    sizes = Sizes(num_branches, num_draft, 128256, 0, num_branches * num_draft, num_ranks=16)
    return Trial(
        label=f"B={num_rows} W={num_branches} K={num_draft}",
        entry=ENTRY,
        num_blocks=num_rows,
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(num_rows, sizes),
        make=lambda rng: make_case(rng, num_rows, sizes),
    )


KERNEL = Kernel(
    name="lookup",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(ENTRY,),
    trials=(_trial(1, 16, 4), _trial(16, 16, 4), _trial(64, 64, 16)),
)
