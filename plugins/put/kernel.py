"""Putting bytes as a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engines.errors import UsageError
from plugins.cuda.args import Args, Array, Number, Values
from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.put.reference import Bytes, put

ENTRY = "ssd_put"
NUM_THREADS = 128
MAX_SEGMENTS, MAX_BYTES = 32, 3072
"""What fits into the 4 KiB that a launch may carry."""

ARGS = Args(
    Array("base", ("uint8",), is_output=True),
    Values("offsets", "int64", MAX_SEGMENTS),
    Values("ends", "int32", MAX_SEGMENTS),
    Values("bytes", "uint8", MAX_BYTES),
    Number("num_segments"),
)


def values(segments: Sequence[tuple[int, Bytes]], base: Bytes | None = None) -> dict[str, Any]:
    """The fields of a launch for (offset, bytes) each; the bytes are copied.

    Raises UsageError for more than a launch can carry.
    """
    data = np.concatenate([np.empty(0, np.uint8), *(each for _, each in segments)])
    if len(segments) > MAX_SEGMENTS or data.size > MAX_BYTES:
        raise UsageError(
            f"a launch puts at most {MAX_SEGMENTS} segments and {MAX_BYTES} bytes, found "
            f"{len(segments)} and {data.size}"
        )
    return {
        "base": base,
        "offsets": np.array([offset for offset, _ in segments], np.int64),
        "ends": np.cumsum([each.size for _, each in segments], dtype=np.int32),
        "bytes": data,
        "num_segments": len(segments),
    }


def random_case(rng: np.random.Generator, num_segments: int, most_bytes: int) -> Case:
    """Segments of 0 to ``most_bytes`` bytes at any address, in any order, none over another."""
    sizes = rng.integers(0, most_bytes + 1, num_segments)
    gaps = rng.integers(0, 5, num_segments)
    starts = np.cumsum(gaps + np.concatenate([[0], sizes[:-1]])) if num_segments else gaps
    order = rng.permutation(num_segments)
    segments = [(int(starts[i]), rng.integers(0, 256, sizes[i], np.uint8)) for i in order]
    base = rng.integers(0, 256, int(sizes.sum() + gaps.sum()) + 3, np.uint8)
    fields = values(segments, base)
    after = put(base, fields["offsets"], fields["ends"], fields["bytes"])
    return Case(values=fields, expected={"base": after}, in_torch=_in_torch)


def _in_torch(fields: Mapping[str, Any]) -> object:
    """One copy of as many bytes on the device, from memory that is there already."""
    return fields["base"].clone()


def _trial(num_segments: int, most_bytes: int) -> Trial:
    return Trial(
        label=f"segments={num_segments} of up to {most_bytes} bytes",
        entry=ENTRY,
        num_blocks=1,
        num_threads=NUM_THREADS,
        num_bytes=num_segments * most_bytes,
        make=lambda rng: random_case(rng, num_segments, most_bytes),
    )


KERNEL = Kernel(
    name="put",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(ENTRY,),
    trials=(_trial(16, 8), _trial(4, 512)),
)
