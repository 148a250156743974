"""Weight-only 8-bit quantisation in blocks along the input dimension."""

from __future__ import annotations

import numpy as np

from engines.errors import UnsupportedModelError

BLOCKS = (64, 32)


def check_block(name: str, inputs: int, block: int) -> None:
    """UnsupportedModelError unless ``block`` divides the layer's input width."""
    if inputs % block:
        fix = "--block 32" if inputs % 32 == 0 else "--precision fp32"
        raise UnsupportedModelError(
            f"{name} has {inputs} inputs, which blocks of {block} do not divide; build with {fix}"
        )


def quantize_blocks(weight: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 codes [K, N] and float32 scales [K / block, N] of ``weight`` [K, N].

    scale = max |w| of the block / 127; an all-zero block gets scale 1 so that none is 0.
    """
    inputs, outputs = weight.shape
    blocks = weight.reshape(inputs // block, block, outputs)
    scales = np.abs(blocks).max(axis=1) / np.float32(127)
    scales = np.where(scales == 0, np.float32(1), scales).astype(np.float32)
    codes = np.rint(blocks / scales[:, None, :]).astype(np.int8)
    return codes.reshape(inputs, outputs), scales
