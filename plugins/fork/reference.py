"""Forks in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
IntArray = npt.NDArray[np.int64]

FORKED = (
    *("candidates", "fork_tokens", "lengths"),
    *("cache_branches", "cache_depth", "cache_generation", "cache_round"),
    *("cache_accepted", "cache_bonus"),
)
"""The arrays that a fork writes; of `candidates` one place a row, of the others all."""
STEPPED = ("step_tokens", "step_positions", "step_write_at", "step_logit_rows")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a launch is cut to.

    num_branches  W of this round
    num_draft     K that the arrays have room for
    num_ranks     F
    draft_vocab   ids that the draft has embeddings of
    stride        branches that the draft's scratch rows were laid out for, at least W
    """

    num_branches: int
    num_draft: int
    num_ranks: int
    draft_vocab: int
    stride: int


def fork(arrays: Arrays, sizes: Sizes, depth: int) -> dict[str, npt.NDArray[Any]]:
    """One fork for all rows, whose branches will have ``depth`` tokens; the arrays are those of
    `plugins.fork` and stay as they are. Returns `FORKED`, new arrays."""
    after = {name: arrays[name].copy() for name in FORKED}
    for name in ("fork_tokens", "lengths", "cache_accepted", "cache_branches"):
        after[name][:] = 0
    after["cache_bonus"][:] = -1
    after["cache_depth"][:] = depth
    after["cache_generation"][:] = arrays["generation"]
    after["cache_round"][:] = arrays["round"]
    for row, drafted in enumerate(arrays["num_draft"].tolist()):
        candidates = after["candidates"][row]
        candidates[drafted] = arrays["root_list"][row, : sizes.num_ranks]
        if not arrays["active"][row] or arrays["length"][row] + 1 >= arrays["limit"][row]:
            continue
        outcomes = [
            (accepted, int(token))
            for accepted in range(drafted + 1)
            for token in candidates[accepted][: arrays["fan_out"][drafted, accepted]]
        ][: sizes.num_branches]
        after["cache_branches"][row] = len(outcomes)
        for branch, (accepted, token) in enumerate(outcomes):
            after["cache_accepted"][row, branch] = accepted
            after["cache_bonus"][row, branch] = token
            if token >= 0:
                after["fork_tokens"][row, branch] = token
                after["lengths"][row, branch] = arrays["length"][row] + accepted
    return after


def step(lengths: IntArray, chosen: IntArray, sizes: Sizes, depth: int) -> dict[str, IntArray]:
    """The inputs of the call of ``depth``, `STEPPED`."""
    is_known = (chosen >= 0) & (chosen < sizes.draft_vocab)
    return {
        "step_tokens": np.where(is_known, chosen, 0),
        "step_positions": lengths + depth,
        "step_write_at": np.full(len(lengths), depth * sizes.stride),
        "step_logit_rows": np.tile(np.arange(lengths.shape[1]), (len(lengths), 1)),
    }


def keep(arrays: Arrays) -> IntArray:
    """``candidates`` with those of the winners, a new array."""
    after: IntArray = arrays["candidates"].copy()
    for row, branch in enumerate(arrays["winner"].tolist()):
        if branch >= 0:
            count = int(arrays["num_draft"][row])
            after[row, :count] = arrays["branch_lists"][:count, row, branch, 1:]
    return after
