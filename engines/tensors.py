"""Types and shapes of the tensors that cross an engine's border."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class DType(StrEnum):
    """Element types an engine's inputs and outputs may have, by their numpy names."""

    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"

    @property
    def numpy(self) -> np.dtype:
        """Raises TypeError for bfloat16, which numpy does not have."""
        return np.dtype(self.value)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return 2 if self is DType.BFLOAT16 else self.numpy.itemsize


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: a dimension is a fixed size or the name of a symbolic one.

    Symbolic names: B rows in the call, T tokens a row, L cache rows bound and attended,
    R rows whose logits are computed, K = R - 1 drafted tokens a row.
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
