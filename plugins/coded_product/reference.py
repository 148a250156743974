"""ssd::CodedProduct in numpy: `kernel.h` gives the same bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

LARGEST = 127
SMALLEST = np.float32(1e-30)
"""A block of x with nothing larger than this counts as zeros: the reciprocal of its scale would not
be a number."""

Floats = npt.NDArray[np.float32]


def coded_product(x: Floats, codes: npt.NDArray[np.int8], scales: Floats) -> Floats:
    """float32 [..., N] of ``x`` [..., K], ``codes`` [K, N] and ``scales`` [K / block, N].

    Each block of a row is rounded to codes of its own, -127 .. 127, with one scale. Sums of
    products of codes are whole numbers, so exact in any order; the sums of the blocks are scaled
    and added up in float32, the first block first. A row with an infinity or NaN gives NaN.

    Raises UsageError where the shapes do not fit.
    """
    inputs, outputs = codes.shape
    blocks = len(scales)
    if x.shape[-1] != inputs or scales.shape != (blocks, outputs) or inputs % blocks:
        raise UsageError(
            f"x {x.shape}, codes {codes.shape} and scales {scales.shape} do not fit: "
            "expected [..., K], [K, N] and [K / block, N]"
        )
    rounded, row_scales = rounded_rows(x.reshape(-1, inputs), inputs // blocks)
    result = np.zeros((len(rounded), outputs), np.float32)
    for block in range(blocks):
        part = slice(block * (inputs // blocks), (block + 1) * (inputs // blocks))
        sums = rounded[:, part].astype(np.int32) @ codes[part].astype(np.int32)
        factors = scales[block] * row_scales[:, block, None]
        result += sums.astype(np.float32) * factors
    return result.reshape(*x.shape[:-1], outputs)


def rounded_rows(rows: Floats, block: int) -> tuple[npt.NDArray[np.int8], Floats]:
    """int8 codes [R, K] and scales [R, K / block] of ``rows`` [R, K]."""
    parts = rows.reshape(len(rows), rows.shape[1] // block, block)
    with np.errstate(invalid="ignore"):
        largest = np.abs(parts).max(axis=2)
    is_number = np.isfinite(largest)
    counts = is_number & (largest > SMALLEST)
    largest = np.where(counts, largest, np.float32(LARGEST))
    reciprocals = np.float32(LARGEST) / largest
    codes = np.rint(np.where(counts[..., None], parts, np.float32(0)) * reciprocals[..., None])
    scales = np.where(counts, largest / np.float32(LARGEST), np.float32(0))
    scales = np.where(is_number, scales, np.float32(np.nan))
    return codes.astype(np.int8).reshape(rows.shape), scales.astype(np.float32)
