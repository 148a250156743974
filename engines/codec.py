"""Dataclasses to JSON and back, strictly: a missing, unknown or mistyped field is an error."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class DecodeError(ValueError):
    """A JSON value does not have the form its dataclass asks for; the message names the field."""


def encode(value: object) -> object:
    """Plain JSON values (dict, list, str, int, float, bool, None) for a tree of dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: object, where: str = "") -> T:
    """The dataclass ``kind`` read from plain JSON values. Raises DecodeError."""
    return cast("T", _decode(kind, value, where or kind.__name__))


def _decode(kind: object, value: object, where: str) -> object:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(args, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise DecodeError(f"{where}: expected a list, found {_named(value)}")
        return tuple(_decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise DecodeError(f"{where}: expected an object, found {_named(value)}")
        return {key: _decode(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if not isinstance(kind, type):
        raise TypeError(f"{where}: no rule for {kind}")
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise DecodeError(f"{where}: unknown value {value!r}") from None
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise DecodeError(f"{where}: {len(str(value))} digits are beyond a float") from None
    if type(value) is not kind:
        raise DecodeError(f"{where}: expected {kind.__name__}, found {_named(value)}")
    return value


def _decode_union(options: tuple[object, ...], value: object, where: str) -> object:
    if value is None and type(None) in options:
        return None
    failures = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, value, where)
        except DecodeError as error:
            failures.append(error)
    raise failures[-1]


def _decode_dataclass(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise DecodeError(f"{where}: expected an object, found {_named(value)}")
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    unknown = sorted(set(value) - set(names))
    missing = sorted(set(names) - set(value))
    if missing:
        raise DecodeError(f"{where}: field {missing[0]} is missing")
    if unknown:
        raise DecodeError(f"{where}: unknown field {unknown[0]}")
    items = {name: _decode(hints[name], value[name], f"{where}.{name}") for name in names}
    try:
        return kind(**items)
    except ValueError as error:
        raise DecodeError(f"{where}: {error}") from None


def _named(value: object) -> str:
    return "null" if value is None else type(value).__name__
