"""What a launch of the verification kernels takes: arguments and memory."""

from __future__ import annotations

import math

from plugins.cuda.args import Args, Array, Number
from plugins.law import kernel as law
from plugins.law.kernel import GROUP_SIZE, NUM_THREADS

BRACKETS = "ssd_verify_brackets"
COUPLED, RATIO = "ssd_verify_coupled", "ssd_verify_ratio"
BEST_ROWS, ACCEPT_BEST = "ssd_best_rows", "ssd_accept_best"
PARTIAL_BYTES, JUDGED_BYTES = 12, 40
MAX_SUPPORT = 128
"""Ids that a draft law may have."""

ARGS = Args(
    *law.ARGS.fields,
    Array("q_ids", ("int32",)),
    Array("q_probs", ("float64",)),
    Array("partials", is_output=True),
    Array("tile_octaves", ("int64",), is_output=True),
    Array("tile_masses", ("uint64",), is_output=True),
    Array("judged", is_output=True),
    Array("sequence_tickets", ("uint32",), is_output=True),
    Array("accepted", ("int64",), is_output=True),
    Array("next", ("int64",), is_output=True),
    Array("status", ("int32",), is_output=True),
    Number("support"),
)


def workspace(
    num_sequences: int,
    rows_each: int,
    vocab_size: int,
    num_slices: int,
    num_threads: int = NUM_THREADS,
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of a launch's scratch memory beside `law.workspace`; uint8 holds structs.

    ``sequence_tickets`` is zero before the first launch. The rest needs no initial value. The
    coupled rule needs no tiles.
    """
    num_rows = num_sequences * rows_each
    tiles = math.ceil(vocab_size / (GROUP_SIZE * num_threads))
    return {
        "partials": ((num_rows, num_slices, PARTIAL_BYTES), "uint8"),
        "tile_octaves": ((num_rows, tiles), "int64"),
        "tile_masses": ((num_rows, tiles), "uint64"),
        "judged": ((num_rows, JUDGED_BYTES), "uint8"),
        "sequence_tickets": ((num_sequences,), "uint32"),
    }
