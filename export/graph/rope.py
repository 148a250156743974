"""Rotary position tables, computed once at build time."""

from __future__ import annotations

import numpy as np

from export.checkpoint.spec import ModelSpec, inv_freq


def rotary_tables(
    spec: ModelSpec, num_positions: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine tables [num_positions, head_dim / 2], taken in float64 and rounded once."""
    angles = np.outer(np.arange(num_positions, dtype=np.float64), inv_freq(spec))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
