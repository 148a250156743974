"""What there is to know of a kernel: its source, its arguments, and launches to try it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.cuda.args import Args, addresses

H200_BYTES_PER_S = 4.8e12
"""Memory bandwidth of an H200, the yardstick of `Trial.floor_s`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One launch with its answer.

    values     the kernel's fields as numpy arrays and numbers; outputs hold what they start with.
               No address: a trial's arrays move to a GPU
    expected   what the named outputs hold afterwards
    rtol, atol error that floating point outputs may have, as in numpy.isclose; integers are exact
    tables     fields that are tables of addresses: the arrays that they name. An expected array
               is called ``name.i`` there.
    in_torch   the same work in torch, to time against: takes `values` and `tables` with torch
               tensors on the GPU in the place of arrays. None: nothing in torch compares.
    """

    values: Mapping[str, Any]
    expected: Mapping[str, npt.NDArray[Any]]
    rtol: float = 0.0
    atol: float = 0.0
    tables: Mapping[str, Sequence[npt.NDArray[Any]]] = field(default_factory=dict)
    in_torch: Callable[[Mapping[str, Any]], object] | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A use of typical size.

    label                   the sizes, as in ``B=16 K=4 V=128256``
    entry                   what is launched last
    first                   entries launched before it, on the same struct and grid
    num_blocks, num_threads the grid on a device
    num_bytes               what must cross the memory bus: each input read once, each output
                            written once, no more than the launch touches
    make                    draws a case from a random generator
    """

    label: str
    entry: str
    num_blocks: int
    num_threads: int
    num_bytes: int
    make: Callable[[np.random.Generator], Case]
    first: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """All that is launched, in order."""
        return (*self.first, self.entry)

    @property
    def floor_s(self) -> float:
        """The time that `num_bytes` take at an H200's memory bandwidth, in seconds."""
        return self.num_bytes / H200_BYTES_PER_S


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel source and its entries, all of which take the same struct."""

    name: str
    source: Path
    args: Args
    entries: tuple[str, ...]
    trials: tuple[Trial, ...]


def host_values(case: Case) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """A case's fields for a launch on the host, and the arrays that its answer is about.

    Both are copies: a case can be run several times.
    """
    values = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in case.values.items()
    }
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    for name, table in case.tables.items():
        copies = [each.copy() for each in table]
        values[name] = addresses(copies)
        arrays.update({f"{name}.{index}": each for index, each in enumerate(copies)})
    return values, arrays


def wrong_outputs(case: Case, found: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """One line for each output that is not as expected; empty when all are."""
    lines = []
    for name, expected in case.expected.items():
        actual = found[name].reshape(expected.shape)
        if expected.dtype.kind == "f":
            good = np.isclose(actual, expected, rtol=case.rtol, atol=case.atol, equal_nan=True)
        else:
            good = actual == expected
        if not good.all():
            where = tuple(int(axis) for axis in np.argwhere(~good)[0])
            lines.append(
                f"{name}{list(where)} is {actual[where]}, expected {expected[where]} "
                f"({np.count_nonzero(~good)} of {good.size} differ)"
            )
    return lines
