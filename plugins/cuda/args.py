"""A kernel's arguments: one struct of pointers and numbers, declared once for host and device."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

_NUMBERS: Mapping[str, type[Any]] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
}


@dataclass(frozen=True, slots=True)
class Array:
    """A pointer to a dense array.

    dtypes     the numpy names of the element types that it may have; none: any
    is_output  the kernel writes it
    """

    name: str
    dtypes: tuple[str, ...] = ()
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number by value; ``dtype`` is int32, int64, uint32, uint64 or float32."""

    name: str
    dtype: str = "int32"


Field = Array | Number


class Args:
    """The fields of a kernel's struct, in the order of its C++ declaration."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        members = [
            (each.name, _NUMBERS[each.dtype] if isinstance(each, Number) else ctypes.c_void_p)
            for each in fields
        ]
        self.struct: type[ctypes.Structure] = type(
            "KernelArgs", (ctypes.Structure,), {"_fields_": members}
        )

    def pack(self, values: Mapping[str, Any]) -> ctypes.Structure:
        """The struct for one launch.

        Args:
            values: every field. An array is a numpy array, which the caller keeps alive, or the
                address of device memory; None is a null pointer.

        Raises UsageError on a field too many or too few, an element type that the kernel does
        not take, an array that is not dense or that the kernel cannot write, and a number out of
        its type's range.
        """
        names = [each.name for each in self.fields]
        if set(values) != set(names):
            wrong = ", ".join(sorted(set(values) ^ set(names)))
            raise UsageError(f"a launch takes {', '.join(names)}; missing or unknown: {wrong}")
        return self.struct(*(_member(each, values[each.name]) for each in self.fields))


def addresses(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """A table of where dense arrays start, for a kernel that works on several."""
    return np.array([each.ctypes.data for each in arrays], dtype=np.uint64)


def _member(field: Field, value: Any) -> float | int | None:
    return _number(field, value) if isinstance(field, Number) else _address(field, value)


def _number(field: Number, value: Any) -> float | int:
    if field.dtype == "float32":
        return float(value)
    limits = np.iinfo(field.dtype)
    if not limits.min <= int(value) <= limits.max:
        raise UsageError(f"{field.name} must be {field.dtype}, found {value}")
    return int(value)


def _address(field: Array, value: npt.NDArray[Any] | int | None) -> int | None:
    if value is None or isinstance(value, int):
        return value
    if field.dtypes and value.dtype.name not in field.dtypes:
        raise UsageError(f"{field.name} must be {' or '.join(field.dtypes)}, found {value.dtype}")
    if not value.flags.c_contiguous:
        raise UsageError(f"{field.name} must be dense and row-major: np.ascontiguousarray")
    if field.is_output and not value.flags.writeable:
        raise UsageError(f"{field.name} is written by the kernel and must be writeable")
    return int(value.ctypes.data)
