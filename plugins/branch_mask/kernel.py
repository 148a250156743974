"""The masks as a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plugins.branch_mask.reference import branch_mask, trunk_mask
from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial

TRUNK, BRANCH = "ssd_trunk_mask", "ssd_branch_mask"
NUM_THREADS = 128

ARGS = Args(
    Array("positions", ("int64",)),
    Array("mask", ("bool",), is_output=True),
    Number("num_rows"),
    Number("num_tokens"),
    Number("num_attended"),
    Number("scratch_rows"),
    Number("num_branches"),
    Number("depth"),
)
"""``positions`` is the trunk's ``write_at`` or the branches' ``lengths``."""


def num_bytes(num_rows: int, num_tokens: int, num_attended: int) -> int:
    """What a mask writes; the lengths that it reads are left out."""
    return num_rows * num_tokens * num_attended


def trunk_case(
    rng: np.random.Generator,
    *,
    num_rows: int,
    num_tokens: int,
    num_attended: int,
    scratch_rows: int = 0,
) -> Case:
    """Rows of random lengths; `num_attended` is above `scratch_rows` by T at least."""
    write_at = rng.integers(scratch_rows, num_attended - num_tokens + 1, num_rows)
    return _case(
        {"positions": write_at, "num_rows": num_rows, "num_tokens": num_tokens}
        | {"num_attended": num_attended, "scratch_rows": scratch_rows}
        | {"num_branches": 0, "depth": 0},
        trunk_mask(write_at, num_tokens, num_attended, scratch_rows),
    )


def branch_case(
    rng: np.random.Generator,
    *,
    num_rows: int,
    num_tokens: int,
    num_attended: int,
    scratch_rows: int,
    num_branches: int,
    depth: int,
) -> Case:
    """Branches of random lengths, some of them padding."""
    lengths = rng.integers(0, num_attended - scratch_rows + 1, (num_rows, num_tokens))
    lengths[rng.random(lengths.shape) < 0.2] = 0
    return _case(
        {"positions": lengths, "num_rows": num_rows, "num_tokens": num_tokens}
        | {"num_attended": num_attended, "scratch_rows": scratch_rows}
        | {"num_branches": num_branches, "depth": depth},
        branch_mask(lengths, depth, num_attended, scratch_rows, num_branches),
    )


def _case(values: dict[str, Any], mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Case:
    return Case(
        # What it holds before must not matter.
        values={**values, "mask": ~mask},
        expected={"mask": mask},
        in_torch=_in_torch,
    )


def _in_torch(values: Mapping[str, Any]) -> object:
    """Comparisons against the row numbers, as a torch program would write them."""
    positions, num_tokens = values["positions"], values["num_tokens"]
    rows = positions.new_ones(values["num_attended"]).cumsum(0) - 1
    tokens = positions.new_ones(num_tokens).cumsum(0)[:, None] - 1
    in_text = rows >= values["scratch_rows"]
    if positions.ndim == 1:
        return in_text & (rows <= positions[:, None, None] + tokens)
    in_text = in_text & (rows < values["scratch_rows"] + positions[:, :, None])
    is_own = (rows < values["scratch_rows"]) & (rows // values["num_branches"] <= values["depth"])
    return in_text | (is_own & (rows % values["num_branches"] == tokens))


def _trunk_trial(num_rows: int, num_attended: int) -> Trial:
    num_tokens = 5
    return Trial(
        label=f"B={num_rows} T={num_tokens} L={num_attended}",
        entry=TRUNK,
        num_blocks=num_rows * num_tokens,
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(num_rows, num_tokens, num_attended),
        make=lambda rng: trunk_case(
            rng, num_rows=num_rows, num_tokens=num_tokens, num_attended=num_attended
        ),
    )


def _branch_trial(num_rows: int, num_attended: int) -> Trial:
    num_branches, num_draft = 16, 4
    return Trial(
        label=f"B={num_rows} W={num_branches} K={num_draft} L={num_attended}",
        entry=BRANCH,
        num_blocks=num_rows * num_branches,
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(num_rows, num_branches, num_attended),
        make=lambda rng: branch_case(
            rng,
            num_rows=num_rows,
            num_tokens=num_branches,
            num_attended=num_attended,
            scratch_rows=num_branches * num_draft,
            num_branches=num_branches,
            depth=num_draft - 1,
        ),
    )


KERNEL = Kernel(
    name="branch_mask",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(TRUNK, BRANCH),
    trials=(
        _trunk_trial(1, 1024),
        _trunk_trial(16, 4096),
        _branch_trial(1, 1024),
        _branch_trial(16, 4096),
    ),
)
