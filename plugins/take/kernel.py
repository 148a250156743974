"""Taking a proposal as a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plugins.cuda.args import Args, Array, Number
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.take.reference import take

ENTRY = "ssd_take"
NUM_THREADS = 32

ARGS = Args(
    Array("sent_generation", ("int64",)),
    Array("sent_kind", ("int64",)),
    Array("sent_num_draft", ("int64",)),
    Array("sent_tokens", ("int64",)),
    Array("generation", ("int64",)),
    Array("active", ("bool",)),
    Array("limit", ("int64",)),
    Array("length", ("int64",)),
    Array("verify_tokens", ("int64",), is_output=True),
    Array("num_draft", ("int64",), is_output=True),
    Array("kind", ("int64",), is_output=True),
    Array("tokens", ("int64",), is_output=True),
    Array("positions", ("int64",), is_output=True),
    Array("write_at", ("int64",), is_output=True),
    Array("call_num_draft", ("int64",), is_output=True),
    Array("logit_rows", ("int64",), is_output=True),
    Number("stride"),
    Number("tokens_stride"),
    Number("num_rows"),
    Number("num_tokens"),
    Number("max_draft"),
    Number("scratch_rows"),
)


def num_bytes(num_rows: int, num_draft: int, num_tokens: int) -> int:
    """What is read and written where every row takes a whole proposal."""
    message, row = 8 * (3 + num_draft), 8 * 4 + 1
    written = 8 * (num_draft + 1 + 2) + 8 * (3 * num_tokens + 2)
    return num_rows * (message + row + written)


def random_case(
    rng: np.random.Generator, num_rows: int, num_draft: int, num_tokens: int, *, is_packed: bool
) -> Case:
    """Rows of which some are dummies, near their limit, or held by another lease by now.

    ``is_packed``: the message is one row of numbers a text, [lease, kind, m, x1 ..].
    """
    message = rng.integers(1, 50, (num_rows, 3 + num_draft))
    message[:, 0] = rng.integers(1, 3, num_rows)
    message[:, 2] = rng.integers(0, num_draft + 1, num_rows)
    length = rng.integers(1, 40, num_rows)
    arrays = {
        "generation": rng.integers(1, 3, num_rows),
        "active": rng.random(num_rows) < 0.8,
        "limit": length + rng.integers(1, num_draft + 3, num_rows),
        "length": length,
        "verify_tokens": rng.integers(1, 50, (num_rows, num_draft + 1)),
        "num_draft": rng.integers(0, num_draft + 1, num_rows),
        "kind": rng.integers(0, 3, num_rows),
    }
    sent = {
        "sent_generation": message[:, 0],
        "sent_kind": message[:, 1],
        "sent_num_draft": message[:, 2],
        "sent_tokens": message[:, 3:],
    }
    scratch = int(rng.integers(0, 9))
    after = take(arrays | sent, num_tokens, scratch)
    fields: dict[str, Any] = {
        name: message.reshape(-1)[column:] if is_packed else np.ascontiguousarray(sent[name])
        for column, name in enumerate(sent)
    }
    # What the outputs hold before must not matter.
    fields |= {name: np.full_like(array, -7) for name, array in after.items()} | arrays
    fields |= {
        "stride": message.shape[1] if is_packed else 1,
        "tokens_stride": message.shape[1] if is_packed else num_draft,
        "num_rows": num_rows,
        "num_tokens": num_tokens,
        "max_draft": num_draft,
        "scratch_rows": scratch,
    }
    return Case(values=fields, expected=after, in_torch=_in_torch)


def _in_torch(fields: Mapping[str, Any]) -> object:
    """The comparison of leases and the positions alone, which is less than the kernel does."""
    is_mine = fields["active"] & (fields["sent_generation"] == fields["generation"])
    return is_mine, fields["length"] - 1, fields["verify_tokens"] * is_mine[:, None]


def _trial(num_rows: int, num_draft: int) -> Trial:
    return Trial(
        label=f"B={num_rows} K={num_draft}",
        entry=ENTRY,
        num_blocks=num_rows,
        num_threads=NUM_THREADS,
        num_bytes=num_bytes(num_rows, num_draft, num_draft + 1),
        make=lambda rng: random_case(rng, num_rows, num_draft, num_draft + 1, is_packed=False),
    )


KERNEL = Kernel(
    name="take",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(ENTRY,),
    trials=(_trial(1, 4), _trial(64, 16)),
)
