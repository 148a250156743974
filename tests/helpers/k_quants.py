"""llama.cpp's K-quants: random blocks, and what each number in them is, one at a time.

A block is 256 weights of one row. The layouts are those of ggml's block_q4_K, block_q5_K and
block_q6_K; nothing here shares code with the library that the exporter reads them through.
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
NUM_BYTES = {"Q4_K": 2 + 2 + 12 + 128, "Q5_K": 2 + 2 + 12 + 32 + 128, "Q6_K": 128 + 64 + 16 + 2}


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Bytes [rows, columns / 256 * bytes of a block] that decode to weights of ordinary size."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, columns // BLOCK, NUM_BYTES[kind]), dtype=np.uint8)
    scales = random.uniform(1e-4, 1e-3, (rows, columns // BLOCK, 2)).astype(np.float16)
    at = NUM_BYTES[kind] - 2 if kind == "Q6_K" else 0
    count = 2 if kind == "Q6_K" else 4
    blocks[..., at : at + count] = scales.view(np.uint8)[..., :count]
    return blocks.reshape(rows, -1)


def decode(kind: str, data: np.ndarray) -> np.ndarray:
    """Weights [rows, columns] of such bytes, float32."""
    rows = [
        np.concatenate([_DECODERS[kind](block) for block in row.reshape(-1, NUM_BYTES[kind])])
        for row in data
    ]
    return np.stack(rows).astype(np.float32)


def _half(block: np.ndarray, at: int) -> float:
    return float(block[at : at + 2].view(np.float16)[0])


def _scale_and_minimum(packed: np.ndarray, part: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of one of the eight parts of a block, from 12 bytes: the last
    four parts keep their low bits in bytes 8 to 11 and their high ones above the others'."""
    byte = [int(value) for value in packed]
    if part < 4:
        return byte[part] & 63, byte[part + 4] & 63
    low = byte[part + 4]
    return low & 15 | byte[part - 4] >> 6 << 4, low >> 4 | byte[part] >> 6 << 4


def _q4_or_q5(block: np.ndarray, fifth_bits: np.ndarray | None, codes: np.ndarray) -> np.ndarray:
    scale, minimum = _half(block, 0), _half(block, 2)
    weights = np.empty(BLOCK)
    for index in range(BLOCK):
        part, place = divmod(index, 32)
        code = int(codes[part // 2 * 32 + place]) >> 4 * (part % 2) & 15
        if fifth_bits is not None:
            code |= (int(fifth_bits[place]) >> part & 1) << 4
        factor, offset = _scale_and_minimum(block[4:16], part)
        weights[index] = scale * factor * code - minimum * offset
    return weights


def _q6(block: np.ndarray) -> np.ndarray:
    low, high, factors = block[:128], block[128:192], block[192:208].view(np.int8)
    scale = _half(block, 208)
    weights = np.empty(BLOCK)
    for index in range(BLOCK):
        half, within = divmod(index, 128)
        quarter, place = divmod(within, 32)
        code = int(low[half * 64 + quarter % 2 * 32 + place]) >> 4 * (quarter // 2) & 15
        code |= (int(high[half * 32 + place]) >> 2 * quarter & 3) << 4
        weights[index] = scale * int(factors[index // 16]) * (code - 32)
    return weights


_DECODERS = {
    "Q4_K": lambda block: _q4_or_q5(block, None, block[16:]),
    "Q5_K": lambda block: _q4_or_q5(block, block[16:48], block[48:]),
    "Q6_K": _q6,
}
