"""Drafting one after the other as a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.chain.reference import NEXT, ROOT, Sizes, follow, root
from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial

ROOT_ENTRY, NEXT_ENTRY = "ssd_chain_root", "ssd_chain_next"
NUM_THREADS = 32

ARGS = Args(
    Array("active", ("bool",)),
    Array("length", ("int64",)),
    Array("limit", ("int64",)),
    Array("last_tokens", ("int64",)),
    Array("sample", ("int64",)),
    Array("kind", ("int64",), is_output=True),
    Array("num_draft", ("int64",), is_output=True),
    Array("verify_tokens", ("int64",), is_output=True),
    Array("root_tokens", ("int64",), is_output=True),
    Array("root_positions", ("int64",), is_output=True),
    Array("root_write_at", ("int64",), is_output=True),
    Array("root_logit_rows", ("int64",), is_output=True),
    Array("sample_positions", ("int64",), is_output=True),
    Array("step_tokens", ("int64",), is_output=True),
    Array("step_positions", ("int64",), is_output=True),
    Array("step_write_at", ("int64",), is_output=True),
    Array("step_logit_rows", ("int64",), is_output=True),
    Number("num_rows"),
    Number("num_wanted"),
    Number("max_draft"),
    Number("draft_vocab"),
    Number("draft_scratch"),
    Number("index"),
)


def values(
    arrays: Mapping[str, Any], num_rows: int, sizes: Sizes, *, num_wanted: int = 0, index: int = 0
) -> dict[str, Any]:
    """The fields of a launch: the arrays of its entry, as in `plugins.chain`, or their device
    addresses. ``num_wanted`` tokens are to be drafted, ``index`` is the one just drawn."""
    numbers = asdict(sizes)
    numbers["max_draft"] = numbers.pop("num_draft")
    numbers |= {"num_rows": num_rows, "num_wanted": num_wanted, "index": index}
    return {**ARGS.blank(), **arrays, **numbers}


def random_rows(
    rng: np.random.Generator, num_rows: int, sizes: Sizes
) -> dict[str, npt.NDArray[Any]]:
    """Rows of which some are dummies, of one token, or near their limit."""
    length = rng.integers(1, 40, num_rows)
    length[rng.random(num_rows) < 0.2] = 1
    return {
        "active": rng.random(num_rows) < 0.9,
        "length": length,
        "limit": length + rng.integers(1, sizes.num_draft + 4, num_rows),
        "last_tokens": rng.integers(0, 2 * sizes.draft_vocab, (num_rows, 2)),
        "kind": rng.integers(0, 3, num_rows),
        "num_draft": rng.integers(0, sizes.num_draft + 1, num_rows),
        "verify_tokens": rng.integers(0, 99, (num_rows, sizes.num_draft + 1)),
    }


def root_case(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> Case:
    arrays = random_rows(rng, num_rows, sizes)
    num_wanted = int(rng.integers(0, sizes.num_draft + 1))
    expected = root(arrays, sizes, num_wanted)
    outputs = {name: np.full_like(expected[name], -7) for name in ROOT if name not in arrays}
    return Case(
        values(arrays | outputs, num_rows, sizes, num_wanted=num_wanted),
        expected,
        in_torch=_in_torch,
    )


def next_case(rng: np.random.Generator, num_rows: int, sizes: Sizes) -> Case:
    arrays = random_rows(rng, num_rows, sizes)
    arrays["sample"] = rng.integers(0, 2 * sizes.draft_vocab, num_rows)
    index = int(rng.integers(0, sizes.num_draft))
    expected = follow(arrays, sizes, index)
    outputs = {name: np.full_like(expected[name], -7) for name in NEXT}
    return Case(
        values(arrays | outputs, num_rows, sizes, index=index), expected, in_torch=_in_torch
    )


def _in_torch(arrays: Mapping[str, Any]) -> object:
    """The arithmetic alone, which is less than the kernel does."""
    room = (arrays["limit"] - arrays["length"] - 1).clamp(min=0, max=arrays["max_draft"])
    return room * arrays["active"], arrays["length"] - 1, arrays["last_tokens"].clamp(min=0)


def num_bytes(entry: str, num_rows: int, sizes: Sizes) -> int:
    """What an entry reads and writes."""
    if entry == NEXT_ENTRY:
        return num_rows * 8 * (3 + 5)
    return num_rows * (1 + 8 * 4 + 8 * (2 + sizes.num_draft) + 8 * 7)


def _trial(entry: str, num_rows: int) -> Trial:
    sizes = Sizes(4, 128256, 64)
    make = root_case if entry == ROOT_ENTRY else next_case
    return Trial(
        label=f"{entry} B={num_rows} K={sizes.num_draft}",
        entry=entry,
        num_blocks=-(-num_rows // NUM_THREADS),
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(entry, num_rows, sizes),
        make=lambda rng: make(rng, num_rows, sizes),
    )


KERNEL = Kernel(
    name="chain",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(ROOT_ENTRY, NEXT_ENTRY),
    trials=tuple(_trial(entry, rows) for entry in (ROOT_ENTRY, NEXT_ENTRY) for rows in (1, 64)),
)
