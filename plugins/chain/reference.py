"""Drafting one after the other in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.lookup.reference import Kind

Arrays = Mapping[str, npt.NDArray[Any]]
IntArray = npt.NDArray[np.int64]

ROOT = (
    *("kind", "num_draft", "verify_tokens"),
    *("root_tokens", "root_positions", "root_write_at", "root_logit_rows", "sample_positions"),
)
"""The arrays that the root's entry writes; all of each but for the first token to verify."""
NEXT = ("step_tokens", "step_positions", "step_write_at", "step_logit_rows")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is fixed for a pair of engines.

    num_draft      K
    draft_vocab    ids that the draft has embeddings of
    draft_scratch  rows of a slot's cache before position 0 of the text
    """

    num_draft: int
    draft_vocab: int
    draft_scratch: int


def root(arrays: Arrays, sizes: Sizes, num_wanted: int) -> dict[str, npt.NDArray[Any]]:
    """The root pass's inputs for all rows, and a proposal without tokens yet: `ROOT`, new arrays.

    The arrays are those of `plugins.chain` and stay as they are.
    """
    length, is_active = arrays["length"], arrays["active"]
    room = np.clip(arrays["limit"] - length - 1, 0, num_wanted)
    num_draft = np.where(is_active, room, 0)
    is_whole = is_active & (length > 1)  # there are two tokens to feed
    start = length - 1 - is_whole
    known = _known(arrays["last_tokens"], sizes)
    tokens = np.where(is_whole[:, None], known, np.pad(known[:, 1:], ((0, 0), (0, 1))))
    verify_tokens = np.zeros_like(arrays["verify_tokens"])
    verify_tokens[:, 0] = arrays["verify_tokens"][:, 0]
    return {
        "kind": np.where(num_draft > 0, int(Kind.JIT), int(Kind.NONE)),
        "num_draft": num_draft,
        "verify_tokens": verify_tokens,
        "root_tokens": np.where(is_active[:, None], tokens, 0),
        "root_positions": start[:, None] + np.arange(2),
        "root_write_at": sizes.draft_scratch + start,
        "root_logit_rows": is_whole[:, None].astype(np.int64),
        "sample_positions": length[:, None] - 1,
    }


def follow(arrays: Arrays, sizes: Sizes, index: int) -> dict[str, npt.NDArray[Any]]:
    """``verify_tokens`` with draft number ``index``, and the next call's inputs, `NEXT`."""
    sample, position = arrays["sample"], arrays["length"] + index
    verify_tokens = arrays["verify_tokens"].copy()
    verify_tokens[:, 1 + index] = np.where(index < arrays["num_draft"], sample, 0)
    return {
        "verify_tokens": verify_tokens,
        "step_tokens": _known(sample, sizes)[:, None],
        "step_positions": position[:, None],
        "step_write_at": sizes.draft_scratch + position,
        "step_logit_rows": np.zeros_like(position)[:, None],
    }


def _known(tokens: IntArray, sizes: Sizes) -> IntArray:
    return np.where((tokens >= 0) & (tokens < sizes.draft_vocab), tokens, 0)
