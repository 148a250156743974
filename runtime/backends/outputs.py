"""Memory for a session's outputs: one block for each kept copy, shared by calls of all shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engines.manifest import EngineManifest


class Outputs:
    """Blocks by (copy, output name). Calls come in B sizes, each in up to K + 1 widths; with
    outputs of their own they would hold about B * K / 4 times the logits that the largest fills.

    A block is made for the largest call of its kind, and made anew for a larger one (the scoring
    of a text); steps made before keep theirs.
    """

    def __init__(self, manifest: EngineManifest, num_slots: int) -> None:
        limits = manifest.limits
        vocab = manifest.model.output_vocab
        self._trunk_size = num_slots * (limits.num_draft + 1) * vocab
        self._branch_size = num_slots * limits.max_branches * vocab
        self._blocks: dict[tuple[int, str], np.ndarray] = {}

    def array(self, copy: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray:
        """An output array of one copy, C-contiguous. Its values are those of the last call of
        that copy, whatever its shape."""
        size = math.prod(shape)
        block = self._blocks.get((copy, name))
        if block is None or block.size < size:
            usual = self._branch_size if copy else self._trunk_size
            most = max(size, usual if name == "logits" else size)
            block = self._blocks[copy, name] = np.zeros(most, dtype)
        return block[:size].reshape(shape)
