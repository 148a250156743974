"""What slots hold beyond their texts, and how much of it a prompt can use.

A cache row depends on the tokens up to its own and on nothing else, so a text that begins as an
earlier one did may go on behind rows that are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.profiles import PROMPT_STEP

Tokens = npt.NDArray[np.int32]

BLOCK = PROMPT_STEP
"""Rows are reused in whole blocks from position 0 on. A prompt's call is that wide at least, so
fewer tokens save no call; and a call that begins at a multiple stays inside the caches."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of positions 0 .. len(tokens) - 1 of a slot, which its target was fed ``tokens``
    for; the draft was fed about ``num_held`` of them, and its worker knows how many. Only requests
    of the same ``salt`` may use them."""

    tokens: Tokens
    salt: str | None = None
    num_held: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """The rows of the first ``num_positions`` of slot ``source`` are copied to the slot
    ``destination``; or, where it ``swaps``, all that both hold changes places. Both are free."""

    source: int
    destination: int
    num_positions: int
    swaps: bool = False


def as_tokens(ids: Sequence[int]) -> Tokens:
    return np.asarray(ids, np.int32)


def num_usable(prompt: Tokens, held: Tokens) -> int:
    """Positions of ``prompt`` whose rows are those of ``held``: whole blocks, and never the last
    token's, which has to be fed so that there are logits."""
    most = min(len(prompt) - 1, len(held))
    differs = prompt[:most] != held[:most]
    first = int(differs.argmax()) if differs.any() else most
    return first - first % BLOCK
