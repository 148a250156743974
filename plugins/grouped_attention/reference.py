"""ssd::GroupedAttention in numpy, in float64: the kernel's result up to rounding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

Floats = npt.NDArray[np.float32]


def grouped_attention(
    queries: Floats, keys: Floats, values: Floats, bias: Floats, *, scale: float
) -> Floats:
    """float32 [B, T, H * D] of ``queries`` [B, H, T, D], ``keys`` and ``values`` [B, G, L, D] and
    ``bias`` [B, 1, H / G * T, L], of which the first T rows are read.

    Raises UsageError where the shapes do not fit.
    """
    batch, heads, tokens, size = queries.shape
    groups, rows = keys.shape[1:3]
    fits = (
        keys.shape == values.shape == (batch, groups, rows, size)
        and heads % groups == 0
        and bias.shape == (batch, 1, heads // groups * tokens, rows)
    )
    if not fits:
        raise UsageError(
            f"queries {queries.shape}, keys {keys.shape}, values {values.shape} and bias "
            f"{bias.shape} do not fit: expected [B, H, T, D], twice [B, G, L, D] and "
            "[B, 1, H / G * T, L]"
        )
    wide = (batch, groups, heads // groups, tokens, size)
    scores = np.einsum(
        "bghtd,bgld->bghtl", queries.reshape(wide).astype(np.float64), keys.astype(np.float64)
    )
    scores = scores * scale + bias[:, :, None, :tokens].astype(np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    context: npt.NDArray[np.float64]
    context = np.einsum("bghtl,bgld->btghd", weights, values.astype(np.float64))
    return context.reshape(batch, tokens, heads * size).astype(np.float32)
