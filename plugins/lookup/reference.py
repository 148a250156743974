"""The lookup in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

Arrays = Mapping[str, npt.NDArray[Any]]


class Kind(IntEnum):
    """What a row brings into a round; SKIP: it is not verified."""

    NONE = 0
    HIT = 1
    JIT = 2
    SKIP = 4


GENERATION, KIND, COUNT, ACCEPTED, EMITTED = range(5)
"""Columns of `outcome`; from EMITTED on it holds the new tokens."""
WAS_PREPARED, RANK, STATUS = -3, -2, -1
"""Its last columns."""
NUM_EXTRA = 3

OUTPUTS = (
    *("cache_branches", "round", "active", "length", "kind", "last_tokens"),
    *("verify_tokens", "verify_positions", "verify_write_at", "num_draft"),
    *("root_tokens", "root_positions", "root_write_at"),
    *("winner", "commit_at", "outcome"),
)
"""The arrays that a lookup writes; all of each."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is fixed for a pair of engines.

    num_branches    W
    num_draft       K
    draft_vocab     ids that the draft has embeddings of
    target_scratch, draft_scratch
                    rows of a slot's cache before position 0 of the text
    num_ranks       F
    """

    num_branches: int
    num_draft: int
    draft_vocab: int
    target_scratch: int
    draft_scratch: int
    num_ranks: int = 0


def shapes(
    num_rows: int, sizes: Sizes, num_slots: int | None = None
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The numpy type and shape of every array, in the order of the kernel's arguments.

    There are as many slots as rows unless `num_slots` says so.
    """
    branches, depth, width = sizes.num_branches, sizes.num_draft, sizes.num_draft + 1
    row: dict[str, tuple[str, tuple[int, ...]]] = {
        "accepted": ("int64", ()),
        "bonus": ("int64", ()),
        "status": ("int32", ()),
        "candidates": ("int64", (width, sizes.num_ranks)),
        "cache_branches": ("int32", ()),
        "cache_depth": ("int32", ()),
        "cache_generation": ("int64", ()),
        "cache_round": ("int64", ()),
        "cache_accepted": ("int32", (branches,)),
        "cache_bonus": ("int64", (branches,)),
        "cache_tokens": ("int64", ()),
        "generation": ("int64", ()),
        "limit": ("int64", ()),
        "round": ("int64", ()),
        "active": ("bool", ()),
        "length": ("int64", ()),
        "kind": ("int64", ()),
        "last_tokens": ("int64", (2,)),
        "verify_tokens": ("int64", (width,)),
        "verify_positions": ("int64", (width,)),
        "verify_write_at": ("int64", ()),
        "num_draft": ("int64", ()),
        "root_tokens": ("int64", (1,)),
        "root_positions": ("int64", (1,)),
        "root_write_at": ("int64", ()),
        "winner": ("int32", ()),
        "commit_at": ("int64", ()),
        "outcome": ("int64", (EMITTED + width + NUM_EXTRA,)),
    }
    found = {name: (dtype, (num_rows, *shape)) for name, (dtype, shape) in row.items()}
    found["cache_tokens"] = ("int64", (depth, num_slots or num_rows, branches))
    return found


def lookup(arrays: Arrays, sizes: Sizes) -> dict[str, npt.NDArray[Any]]:
    """One lookup for all rows; the arrays are those of `plugins.lookup` and stay as they are.

    Returns the `OUTPUTS`, new arrays.

    Raises UsageError on an array of another type or shape, and on an outcome that cannot be:
    more tokens accepted than were drafted.
    """
    _check(arrays, sizes)
    after = {name: arrays[name].copy() for name in OUTPUTS}
    for row in range(len(arrays["length"])):
        _lookup_row(row, arrays, after, sizes)
    return after


def _lookup_row(row: int, before: Arrays, after: Arrays, sizes: Sizes) -> None:
    bonus = int(before["bonus"][row])
    is_active, length = bool(before["active"][row]), int(before["length"][row])
    after["round"][row] += 1
    after["outcome"][row] = 0
    after["outcome"][row, GENERATION] = before["generation"][row]
    after["outcome"][row, KIND] = Kind.SKIP
    after["outcome"][row, [WAS_PREPARED, RANK]] = -1
    next_token, kind, branch, drafted, before_it = 0, Kind.NONE, -1, [], 0  # a dummy
    if is_active:
        accepted = int(before["accepted"][row])
        num_prepared = _num_prepared(row, before)
        branch = _find(row, before, num_prepared, accepted, bonus)
        after["cache_branches"][row] = 0
        emitted = [*before["verify_tokens"][row, 1 : 1 + accepted].tolist(), bonus]
        head = (before["kind"][row], before["num_draft"][row], accepted)
        ranks = np.flatnonzero(before["candidates"][row, accepted] == bonus)
        after["outcome"][row, KIND:EMITTED] = head
        after["outcome"][row, EMITTED:-NUM_EXTRA] = _padded(emitted, sizes)
        after["outcome"][row, WAS_PREPARED] = branch >= 0 if num_prepared else -1
        after["outcome"][row, RANK] = ranks[-1] if len(ranks) else -1
        after["outcome"][row, STATUS] = before["status"][row]
        length += len(emitted)
        room = int(before["limit"][row]) - length - 1
        is_active = room >= 0
        if not is_active:
            length = 1
        else:
            next_token, before_it = bonus, int(before["verify_tokens"][row, accepted])
            if branch >= 0:
                kind = Kind.HIT
                depth = min(int(before["cache_depth"][row]), room)
                drafted = before["cache_tokens"][:depth, row, branch].tolist()

    after["active"][row] = is_active
    after["length"][row] = length
    after["kind"][row] = kind
    after["last_tokens"][row] = before_it, next_token

    start = length - 1  # the position of the first token that the target has not seen
    after["verify_tokens"][row] = _padded([next_token, *drafted], sizes)
    after["verify_positions"][row] = start + np.arange(sizes.num_draft + 1)
    after["verify_write_at"][row] = sizes.target_scratch + start
    after["num_draft"][row] = len(drafted)

    last = [next_token, *drafted][-1]
    after["root_tokens"][row] = last if last < sizes.draft_vocab else 0
    after["root_positions"][row] = start + len(drafted)
    after["root_write_at"][row] = sizes.draft_scratch + start + len(drafted)
    after["winner"][row] = branch if drafted else -1
    after["commit_at"][row] = sizes.draft_scratch + start


def _num_prepared(row: int, before: Arrays) -> int:
    """Branches prepared for this text in this round."""
    is_fresh = (
        before["cache_generation"][row] == before["generation"][row]
        and before["cache_round"][row] == before["round"][row]
    )
    return int(before["cache_branches"][row]) if is_fresh else 0


def _find(row: int, before: Arrays, count: int, accepted: int, bonus: int) -> int:
    """The last of `count` branches that was prepared for this outcome; -1 without one."""
    hits = np.flatnonzero(
        (before["cache_accepted"][row, :count] == accepted)
        & (before["cache_bonus"][row, :count] == bonus)
    )
    return int(hits[-1]) if len(hits) else -1


def _padded(tokens: list[int], sizes: Sizes) -> list[int]:
    return tokens + [0] * (sizes.num_draft + 1 - len(tokens))


def _check(arrays: Arrays, sizes: Sizes) -> None:
    num_rows, num_slots = len(arrays["length"]), max(1, arrays["cache_tokens"].shape[1])
    for name, (dtype, shape) in shapes(num_rows, sizes, num_slots).items():
        found = arrays[name]
        if found.dtype.name != dtype or found.shape != shape:
            raise UsageError(
                f"{name} must be {dtype} {list(shape)}, found {found.dtype} {list(found.shape)}"
            )
    accepted = np.where(arrays["active"], arrays["accepted"], 0)
    if (accepted < 0).any() or (accepted > arrays["num_draft"]).any():
        raise UsageError(
            f"at most {arrays['num_draft'].tolist()} tokens can be accepted, "
            f"found {arrays['accepted'].tolist()}"
        )
