"""Taking a proposal in numpy: the meaning that the kernel is tested against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
OUTPUTS = (
    *("verify_tokens", "num_draft", "kind"),
    *("tokens", "positions", "write_at", "call_num_draft", "logit_rows"),
)
"""The arrays that are written; all of each."""


def take(arrays: Arrays, num_tokens: int, scratch_rows: int) -> dict[str, npt.NDArray[Any]]:
    """All rows of a call of T = ``num_tokens``; the arrays are those of `plugins.take`, with the
    message as one array a field ([B], tokens [B, K]), or without ``sent_`` arrays.

    Returns the `OUTPUTS`, new arrays.
    """
    num_rows, width = arrays["verify_tokens"].shape
    after = {name: np.zeros_like(arrays[name]) for name in ("verify_tokens", "num_draft", "kind")}
    after["verify_tokens"][:, 0] = arrays["verify_tokens"][:, 0]
    for row in range(num_rows):
        is_mine = (
            "sent_generation" in arrays
            and bool(arrays["active"][row])
            and arrays["sent_generation"][row] == arrays["generation"][row]
        )
        room = int(arrays["limit"][row] - arrays["length"][row]) - 1
        sent = int(arrays["sent_num_draft"][row]) if is_mine else 0
        count = max(0, min(sent, num_tokens - 1, width - 1, room))
        if is_mine:
            after["kind"][row] = arrays["sent_kind"][row]
        if count:
            after["verify_tokens"][row, 1 : 1 + count] = arrays["sent_tokens"][row, :count]
            after["num_draft"][row] = count
    start = arrays["length"] - 1
    after["tokens"] = after["verify_tokens"][:, :num_tokens].copy()
    after["positions"] = start[:, None] + np.arange(num_tokens)
    after["write_at"] = start + scratch_rows
    after["call_num_draft"] = after["num_draft"].copy()
    after["logit_rows"] = np.tile(np.arange(num_tokens), (num_rows, 1))
    return after
