"""Weight-only quantisation: codes that share a scale, and maybe an offset, along the input."""

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


def quantize_with_offsets(
    weight: np.ndarray, block: int, bits: int, scale_type: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unsigned codes [K, N], scales and offsets [K / block, N] of a float32 ``weight`` [K, N].

    weight ~ (code - offset) * scale. A block's codes span its own range, which must hold 0, so a
    lopsided block has finer steps than symmetric codes give it. Codes and offsets are uint8 in
    0 .. 2^bits - 1. No scale is 0: a block of zeros gets 1, and one too small for its type the
    smallest it has.
    """
    inputs, outputs = weight.shape
    most = 2**bits - 1
    blocks = weight.reshape(inputs // block, block, outputs)
    low = np.minimum(blocks.min(axis=1), 0)
    # Apart, since the range of a block may be beyond float32.
    step = np.maximum(blocks.max(axis=1), 0) / np.float32(most) - low / np.float32(most)
    scales = np.where(step == 0, np.float32(1), step).astype(scale_type)
    limits = np.finfo(scale_type)
    scales = scales.clip(limits.smallest_subnormal, limits.max)
    exact = scales.astype(np.float32)
    offsets = np.rint(-low / exact).clip(0, most)
    codes = np.rint(blocks / exact[:, None, :]) + offsets[:, None, :]
    codes = codes.clip(0, most).astype(np.uint8)
    return codes.reshape(inputs, outputs), scales, offsets.astype(np.uint8)
