"""What an ssd:: operator takes and gives: types and shapes, checked without any engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from engines.errors import BackendError
from engines.tensors import DType

Fact = TypeVar("Fact")


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output.

    dtypes  the element types it may have
    shape   a symbol for each dimension ("B"), or a symbol less a number ("R-1")
    """

    name: str
    dtypes: tuple[DType, ...]
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator's name, its ports in order, and its meaning as an ONNX function.

    Every symbol of an output's shape stands alone ("B") in the shape of some input.
    """

    namespace: str
    name: str
    version: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    function_text: str

    @property
    def full_name(self) -> str:
        """The operator as manifests write it: ``ssd::Verify@1``."""
        return f"{self.namespace}::{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        """16 hex digits over all of the signature, however its function text is laid out."""
        facts = asdict(self) | {"function_text": self.function_text.split()}
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def check_types(self, types: Sequence[str]) -> None:
        """Refuse element types (numpy names, in the order of `inputs`) the operator does not take.

        Raises BackendError naming the input.
        """
        for port, found in self._inputs_with(types):
            if found not in port.dtypes:
                allowed = " or ".join(port.dtypes)
                raise BackendError(
                    f"{self.full_name}: {port.name} must be {allowed}, found {found}"
                )

    def check_ranks(self, ranks: Sequence[int]) -> None:
        """Refuse a number of dimensions that an input does not have; raises BackendError."""
        for port, found in self._inputs_with(ranks):
            if found != len(port.shape):
                raise BackendError(
                    f"{self.full_name}: {port.name} must be [{', '.join(port.shape)}], "
                    f"found {found} dimensions"
                )

    def check_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Refuse input shapes that do not fit together; raises BackendError with both sizes."""
        self.check_ranks([len(shape) for shape in shapes])
        sizes: dict[str, int] = {}
        for port, shape in self._inputs_with(shapes):
            for dim, found in zip(port.shape, shape, strict=True):
                symbol, less = _split(dim)
                size = sizes.setdefault(symbol, found + less)
                if found != size - less:
                    raise BackendError(
                        f"{self.full_name}: {port.name} must be [{', '.join(port.shape)}] "
                        f"with {symbol} = {size}, found {list(shape)}"
                    )

    def source(self, symbol: str) -> tuple[int, int]:
        """The first input and its axis that have the size `symbol`."""
        return next(
            (index, port.shape.index(symbol))
            for index, port in enumerate(self.inputs)
            if symbol in port.shape
        )

    def _inputs_with(self, facts: Sequence[Fact]) -> Iterator[tuple[Port, Fact]]:
        if len(facts) != len(self.inputs):
            names = ", ".join(port.name for port in self.inputs)
            raise BackendError(f"{self.full_name}: takes {names}, found {len(facts)} inputs")
        return zip(self.inputs, facts, strict=True)


def _split(dim: str) -> tuple[str, int]:
    """("R", 1) of "R-1"."""
    symbol, _, less = dim.partition("-")
    return symbol, int(less or 0)
