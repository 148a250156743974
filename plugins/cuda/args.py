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
    "uint8": ctypes.c_uint8,
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


@dataclass(frozen=True, slots=True)
class Values:
    """An array by value, inside the struct: it is copied when a launch is queued.

    ``dtype`` is uint8 or one of a `Number`'s. A launch may give fewer than `count` elements; the
    others are 0.
    """

    name: str
    dtype: str
    count: int


Field = Array | Number | Values


class Args:
    """The fields of a kernel's struct, in the order of its C++ declaration."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self.names = tuple(each.name for each in fields)
        self.by_value = frozenset(each.name for each in fields if isinstance(each, Values))
        self._blank = {each.name: _nothing(each) for each in fields}
        members = [(each.name, _type_of(each)) for each in fields]
        self.struct: type[ctypes.Structure] = type(
            "KernelArgs", (ctypes.Structure,), {"_fields_": members}
        )

    def blank(self) -> dict[str, Any]:
        """Every field with nothing in it: numbers 0, arrays None, values empty."""
        return dict(self._blank)

    def pack(self, values: Mapping[str, Any]) -> ctypes.Structure:
        """The struct for one launch.

        Args:
            values: every field. An array is a numpy array, which the caller keeps alive, or an
                address, of device memory for a device; None is a null pointer. `Values` are numpy
                arrays [<= count].

        Raises UsageError on a field too many or too few, an element type that the kernel does
        not take, an array that is not dense or that the kernel cannot write, a number out of
        its type's range, and more values than there is room for.
        """
        if set(values) != set(self.names):
            wrong = ", ".join(sorted(set(values) ^ set(self.names)))
            raise UsageError(f"a launch takes {', '.join(self.names)}; missing or unknown: {wrong}")
        return self.struct(*(_member(each, values[each.name]) for each in self.fields))


def addresses(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """A table of where dense arrays start, for a kernel that works on several."""
    return np.array([each.ctypes.data for each in arrays], dtype=np.uint64)


def _type_of(field: Field) -> Any:
    if isinstance(field, Array):
        return ctypes.c_void_p
    number = _NUMBERS[field.dtype]
    return number * field.count if isinstance(field, Values) else number


def _nothing(field: Field) -> Any:
    if isinstance(field, Array):
        return None
    return np.empty(0, field.dtype) if isinstance(field, Values) else 0


def _member(field: Field, value: Any) -> Any:
    if isinstance(field, Values):
        return _values(field, value)
    return _number(field, value) if isinstance(field, Number) else _address(field, value)


def _values(field: Values, value: npt.NDArray[Any]) -> ctypes.Array[Any]:
    if value.ndim != 1 or value.size > field.count or value.dtype.name != field.dtype:
        raise UsageError(
            f"{field.name} must be {field.dtype} [up to {field.count}], "
            f"found {value.dtype} {list(value.shape)}"
        )
    padded = np.zeros(field.count, field.dtype)
    padded[: value.size] = value
    packed: ctypes.Array[Any] = _type_of(field).from_buffer_copy(padded)
    return packed


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
