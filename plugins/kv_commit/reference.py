"""The commit in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError


def kv_commit(
    caches: Sequence[npt.NDArray[Any]],
    winner: npt.NDArray[np.int32],
    num_draft: npt.NDArray[np.int64],
    commit_at: npt.NDArray[np.int64],
    num_branches: int,
) -> list[npt.NDArray[Any]]:
    """The caches after the commit, new arrays; the arguments are those of `plugins.kv_commit`.

    Raises UsageError where rows would be read from the trunk, or written to scratch or past a
    cache's end.
    """
    after = [cache.copy() for cache in caches]
    for row, branch in enumerate(winner.tolist()):
        if branch < 0:
            continue
        depth, first = int(num_draft[row]), int(commit_at[row])
        source = slice(branch, depth * num_branches, num_branches)
        for cache, moved in zip(caches, after, strict=True):
            num_rows = cache.shape[2]
            if branch >= num_branches or not depth * num_branches <= first <= num_rows - depth:
                raise UsageError(
                    f"row {row}: {depth} rows of branch {branch} of {num_branches} cannot move to "
                    f"cache row {first} of {num_rows}"
                )
            moved[row, :, first : first + depth] = cache[row, :, source]
    return after
