"""Rotary position tables, computed once at build time."""

from __future__ import annotations

import numpy as np

from export.checkpoint.spec import ModelSpec, inv_freq


def rotary_tables(spec: ModelSpec, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine tables, float32 [num_positions, head_dim / 2], angles taken in float64."""
    angles = np.outer(np.arange(num_positions, dtype=np.float64), inv_freq(spec))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
