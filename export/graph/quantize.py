"""Weight-only quantisation: signed codes, symmetric, that share scales along the input."""

from __future__ import annotations

import numpy as np


def quantize(
    weight: np.ndarray, block: int, largest: int, scale_type: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes [K, N] and scales [K / block, N] of a float32 ``weight`` [K, N].

    scale = max |w| of the block / ``largest``, rounded to ``scale_type`` (float16 or float32);
    codes are the nearest under that rounded scale, within +-``largest``. No scale is 0, which
    TensorRT refuses: a block of zeros gets 1, and one too small for its type the smallest it has.
    None is so large that ``largest`` times it overflows, as rounding up would make it.
    """
    inputs, outputs = weight.shape
    blocks = weight.reshape(inputs // block, block, outputs)
    exact = np.abs(blocks).max(axis=1) / np.float32(largest)
    scales = np.where(exact == 0, np.float32(1), exact).astype(scale_type)
    limits = np.finfo(scale_type)
    most = np.nextafter(limits.max / scale_type.type(largest), scale_type.type(0))
    scales = scales.clip(limits.smallest_subnormal, most)
    codes = np.rint(blocks / scales[:, None, :].astype(np.float32))
    codes = codes.clip(-largest, largest).astype(np.int8)
    return codes.reshape(inputs, outputs), scales
