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
    SKIP = 4


GENERATION, KIND, COUNT, ACCEPTED, EMITTED = range(5)
"""Columns of `outcome`; from EMITTED on it holds the new tokens."""

OUTPUTS = (
    *("cache_branches", "round", "active", "length", "kind"),
    *("verify_tokens", "verify_positions", "verify_write_at", "num_draft"),
    *("root_tokens", "root_positions", "root_write_at"),
    *("winner", "commit_at", "outcome"),
)
"""The arrays that a lookup writes; all of each."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is fixed for a pair of engines.

    num_branches    W, also the stride of the draft's scratch rows
    num_draft       K
    draft_vocab     ids that the draft has embeddings of
    target_scratch, draft_scratch
                    rows of a slot's cache before position 0 of the text
    """

    num_branches: int
    num_draft: int
    draft_vocab: int
    target_scratch: int
    draft_scratch: int


def shapes(num_rows: int, sizes: Sizes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The numpy type and shape of every array, in the order of the kernel's arguments."""
    branches, depth, width = sizes.num_branches, sizes.num_draft, sizes.num_draft + 1
    row: dict[str, tuple[str, tuple[int, ...]]] = {
        "accepted": ("int64", ()),
        "bonus": ("int64", ()),
        "cache_branches": ("int32", ()),
        "cache_depth": ("int32", ()),
        "cache_generation": ("int64", ()),
        "cache_round": ("int64", ()),
        "cache_accepted": ("int32", (branches,)),
        "cache_bonus": ("int64", (branches,)),
        "cache_tokens": ("int64", (branches, depth)),
        "generation": ("int64", ()),
        "limit": ("int64", ()),
        "round": ("int64", ()),
        "active": ("bool", ()),
        "length": ("int64", ()),
        "kind": ("int64", ()),
        "verify_tokens": ("int64", (width,)),
        "verify_positions": ("int64", (width,)),
        "verify_write_at": ("int64", ()),
        "num_draft": ("int64", ()),
        "root_tokens": ("int64", (1,)),
        "root_positions": ("int64", (1,)),
        "root_write_at": ("int64", ()),
        "winner": ("int32", ()),
        "commit_at": ("int64", ()),
        "outcome": ("int64", (EMITTED + width,)),
    }
    return {name: (dtype, (num_rows, *shape)) for name, (dtype, shape) in row.items()}


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
    next_token, kind, branch, drafted = 0, Kind.NONE, -1, []  # a dummy
    if is_active:
        accepted = int(before["accepted"][row])
        branch = _find(row, before, accepted, bonus)
        after["cache_branches"][row] = 0
        emitted = [*before["verify_tokens"][row, 1 : 1 + accepted].tolist(), bonus]
        head = (before["kind"][row], before["num_draft"][row], accepted)
        after["outcome"][row, KIND:EMITTED] = head
        after["outcome"][row, EMITTED:] = _padded(emitted, sizes)
        length += len(emitted)
        room = int(before["limit"][row]) - length - 1
        is_active = room >= 0
        if not is_active:
            length = 1
        else:
            next_token = bonus
            if branch >= 0:
                kind = Kind.HIT
                depth = min(int(before["cache_depth"][row]), room)
                drafted = before["cache_tokens"][row, branch, :depth].tolist()

    after["active"][row] = is_active
    after["length"][row] = length
    after["kind"][row] = kind

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


def _find(row: int, before: Arrays, accepted: int, bonus: int) -> int:
    """The last branch prepared for this outcome, for this text, in this round; -1 without one."""
    is_fresh = (
        before["cache_generation"][row] == before["generation"][row]
        and before["cache_round"][row] == before["round"][row]
    )
    count = before["cache_branches"][row] if is_fresh else 0
    hits = np.flatnonzero(
        (before["cache_accepted"][row, :count] == accepted)
        & (before["cache_bonus"][row, :count] == bonus)
    )
    return int(hits[-1]) if len(hits) else -1


def _padded(tokens: list[int], sizes: Sizes) -> list[int]:
    return tokens + [0] * (sizes.num_draft + 1 - len(tokens))


def _check(arrays: Arrays, sizes: Sizes) -> None:
    for name, (dtype, shape) in shapes(len(arrays["length"]), sizes).items():
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
