"""The commit as a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.kv_commit.reference import kv_commit

ENTRY = "ssd_kv_commit"
NUM_THREADS = 256

ARGS = Args(
    Array("caches", ("uint64",)),
    Array("winner", ("int32",)),
    Array("num_draft", ("int64",)),
    Array("commit_at", ("int64",)),
    Number("num_caches"),
    Number("num_rows"),
    Number("num_heads"),
    Number("cache_rows"),
    Number("row_bytes"),
    Number("num_branches"),
)


def numbers(
    num_caches: int, shape: tuple[int, int, int, int], itemsize: int, num_branches: int
) -> dict[str, int]:
    """The numbers of a launch for caches of this shape [B, Hkv, S, D] and bytes an element."""
    num_rows, num_heads, cache_rows, head_dim = shape
    return {
        "num_caches": num_caches,
        "num_rows": num_rows,
        "num_heads": num_heads,
        "cache_rows": cache_rows,
        "row_bytes": head_dim * itemsize,
        "num_branches": num_branches,
    }


def num_bytes(
    num_caches: int, num_rows: int, num_heads: int, num_draft: int, row_bytes: int
) -> int:
    """What a commit moves where every row has a winner: each of its cache rows read and written.

    The few bytes that say which rows are left out.
    """
    return 2 * num_caches * num_rows * num_heads * num_draft * row_bytes


def random_case(
    rng: np.random.Generator,
    *,
    num_caches: int,
    shape: tuple[int, int, int, int],
    dtype: str,
    num_branches: int,
    num_draft: int,
    hit_rate: float = 0.8,
) -> Case:
    """Caches of random bytes; winners, depths and places as a lookup could give them.

    `shape` [B, Hkv, S, D] has S >= num_draft * num_branches + num_draft.
    """
    num_rows, _, cache_rows, _ = shape
    caches = [_random(rng, shape, dtype) for _ in range(num_caches)]
    is_hit = rng.random(num_rows) < hit_rate
    winner = np.where(is_hit, rng.integers(0, num_branches, num_rows), -1).astype(np.int32)
    depths = rng.integers(0, num_draft + 1, num_rows)
    commit_at = rng.integers(num_draft * num_branches, cache_rows - num_draft + 1, num_rows)
    if hit_rate >= 1:
        depths[:] = num_draft
    after = kv_commit(caches, winner, depths, commit_at, num_branches)
    return Case(
        values={
            "winner": winner,
            "num_draft": depths,
            "commit_at": commit_at,
            **numbers(num_caches, shape, np.dtype(dtype).itemsize, num_branches),
        },
        expected={f"caches.{index}": cache for index, cache in enumerate(after)},
        tables={"caches": caches},
        in_torch=_in_torch,
    )


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), np.uint8).view(dtype).reshape(shape).copy()


def _in_torch(values: Mapping[str, Any]) -> None:
    """A gather and an indexed store a cache; every row has a winner of full depth."""
    winner, first = values["winner"].long(), values["commit_at"]
    depths = first.new_tensor(range(int(values["num_draft"][0])))
    source = depths[None, :] * values["num_branches"] + winner[:, None]
    target = depths[None, :] + first[:, None]
    rows = first.new_tensor(range(values["num_rows"]))[:, None]
    for cache in values["caches"]:
        cache[rows, :, target] = cache[rows, :, source]


def _trial(num_rows: int, num_layers: int, num_heads: int, head_dim: int, dtype: str) -> Trial:
    num_draft, num_branches = 4, 16
    shape = (num_rows, num_heads, 128, head_dim)
    row_bytes, bits = head_dim * np.dtype(dtype).itemsize, 8 * np.dtype(dtype).itemsize
    sizes = f"{2 * num_layers} caches H={num_heads} D={head_dim} {bits}-bit"
    return Trial(
        label=f"B={num_rows} K={num_draft} {sizes}",
        entry=ENTRY,
        num_blocks=2 * num_layers * num_rows,
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(2 * num_layers, num_rows, num_heads, num_draft, row_bytes),
        make=lambda rng: random_case(
            rng,
            num_caches=2 * num_layers,
            shape=shape,
            dtype=dtype,
            num_branches=num_branches,
            num_draft=num_draft,
            hit_rate=1.0,
        ),
    )


KERNEL = Kernel(
    name="kv_commit",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(ENTRY,),
    trials=(
        _trial(1, 16, 8, 64, "int16"),
        _trial(16, 16, 8, 64, "int16"),
        _trial(64, 16, 8, 64, "int16"),
    ),
)
