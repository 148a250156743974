"""The sliding window of local layers, as a second mask that the graph derives from the first.

The caller's mask says which rows hold what a token may see at all; it knows nothing of windows. A
trunk row's position follows from its number (``runtime/kv/layout.py``), so the graph can tell how
far behind a token it lies, and hides it when that is ``window`` or more. Scratch rows have no
position of their own: those that a branch sees are its last tokens, at most K - 1 behind, so they
are always inside the window, which has to be K or longer for that.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from engines.manifest import KvLayout
from export.graph.tape import GraphTape

_NEAR = 2**40
"""A position behind which no window ends."""


def window_mask(
    tape: GraphTape,
    mask: ir.Value,
    positions: ir.Value,
    attended_rows: ir.Value,
    *,
    kv: KvLayout,
    window: int,
) -> ir.Value:
    """``mask`` [B, 1, T, L] without the trunk rows that lie ``window`` or more positions back.

    A token always sees its own row, so no row of the mask becomes all False.
    """
    rows = np.arange(kv.rows) - kv.scratch_rows
    rows[: kv.scratch_rows] = _NEAR
    of_rows = tape.op(
        "Slice",
        tape.weight("window.rows", rows.astype(np.int64)),
        tape.ints(0),
        attended_rows,
        tape.ints(0),
        name="window.row_positions",
    )  # [L]
    ends = tape.op("Sub", positions, tape.ints(window), name="window.ends")  # [B, T]
    ends = tape.op("Unsqueeze", ends, tape.ints(1, 3), name="window.ends_by_row")  # [B, 1, T, 1]
    inside = tape.op("Greater", of_rows, ends, name="window.inside")  # [B, 1, T, L]
    return tape.op("And", mask, inside, name="window.mask")
