"""Rotary position tables, computed once at build time."""

from __future__ import annotations

import numpy as np

from export.checkpoint.rope import attention_factor
from export.checkpoint.spec import ModelSpec, inv_freq


def rotary_tables(
    spec: ModelSpec, num_positions: int, dtype: np.dtype, *, local: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine tables [num_positions, rotated dimensions / 2], taken in float64 and rounded
    once. ``local`` asks for those of the local layers. A scaling's attention factor is in them, on
    queries and keys alike."""
    has_own = local and spec.local_rope_theta is not None
    factor = 1.0 if has_own else attention_factor(spec.rope_scaling)
    positions = np.arange(num_positions, dtype=np.float64)
    angles = np.outer(positions, inv_freq(spec, local=local))
    return (np.cos(angles) * factor).astype(dtype), (np.sin(angles) * factor).astype(dtype)
