"""Products with a fixed weight, laid out once for the processor where torch can do that.

torch's CPU kernels lay a bfloat16 weight out anew at each call, which costs as much as a third of
the product of 64 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

ROWS_EXPECTED = 128
"""What a layout is chosen for; products of other row counts are as right."""


class Product(Protocol):
    """``x`` [N, K] times a weight [M, K] transposed, plus its bias [M] -> [N, M], and what is often
    done with that next. ``other`` is [N, M]."""

    def plain(self, x: Tensor) -> Tensor:
        """The product."""
        ...

    def silu(self, x: Tensor) -> Tensor:
        """SiLU of the product."""
        ...

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, times ``other``."""
        ...

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, plus ``other``."""
        ...


@dataclass(frozen=True, slots=True)
class Eager:
    """torch's own operators: on any device, in any type."""

    weight: Tensor
    bias: Tensor | None

    def plain(self, x: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.linear(x, self.weight, self.bias)

    def silu(self, x: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.silu(self.plain(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self.plain(x) * other

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self.plain(x) + other


class Packed:
    """oneDNN's operators on a weight in its own layout: bfloat16 on a CPU that computes with it.

    torch has them for its compiler and without a name of its own; the ``torch`` extra pins it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        import torch

        self._product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_EXPECTED)
        self._bias = bias

    def plain(self, x: Tensor) -> Tensor:
        return self._product(x, self._weight, self._bias, "none", [], "")

    def silu(self, x: Tensor) -> Tensor:
        return self._product(x, self._weight, self._bias, "swish", [], "")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x, other, self._weight, self._bias, "mul")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x, other, self._weight, self._bias, "add")


def product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """The fastest product there is for ``weight`` [M, K] where it lies."""
    return Packed(weight, bias) if can_pack(weight) else Eager(weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether ``weight`` can be had in oneDNN's layout."""
    import torch

    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16:
        return False
    known = torch.ops.mkldnn  # empty where torch was built without oneDNN
    return hasattr(known, "_is_mkldnn_bf16_supported") and bool(known._is_mkldnn_bf16_supported())
