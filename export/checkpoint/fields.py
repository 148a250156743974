"""Typed reading of a checkpoint's own description (config.json, GGUF metadata)."""

from __future__ import annotations

from collections.abc import Mapping

from engines.errors import CheckpointError

_LARGEST = 2**63 - 1
_LARGEST_FLOAT32 = 3.4028234663852886e38


class Fields:
    """A mapping whose values are checked as they are read. ``where`` names it in errors.

    A missing field or an explicit null takes ``default``; without one it is an error.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def get(self, name: str) -> object:
        """The raw value; None where it is missing or null."""
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, f"a whole number >= {minimum}", value)
        if not minimum <= value <= _LARGEST:
            span = f">= {minimum}" if value < minimum else "of at most 64 bits"
            raise self._wrong(name, f"a whole number {span}", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0 within float32, as is every real-valued field of a description."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, "a number above 0", value)
        if not 0 < value <= _LARGEST_FLOAT32:  # of an int of any length, too
            expected = "a number above 0 that float32 holds" if value > 0 else "a number above 0"
            raise self._wrong(name, expected, value)
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        listed = self.get(name)
        if not isinstance(listed, list):
            raise self._wrong(name, "a list of numbers", listed)
        named = {f"{name}[{index}]": value for index, value in enumerate(listed)}
        entries = Fields(named, self.where)
        return tuple(map(entries.number, named))

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def block(self, name: str) -> dict[str, object]:
        """An object within the description; empty where it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(name, "an object", value)
        return {} if value is None else dict(value)

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """One token id, or None where the field is absent."""
        value = self.get(name)
        return None if value is None else self.check_id(name, value, vocab_size)

    def check_id(self, name: str, value: object, vocab_size: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
            raise self._wrong(name, f"a token id in [0, {vocab_size})", value)
        return value

    def _value(self, name: str, default: object) -> object:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointError(f"{self.where}: the field {name} is missing")
        return default

    def _wrong(self, name: str, expected: str, found: object) -> CheckpointError:
        shown = repr(found)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return CheckpointError(f"{self.where}: {name} must be {expected}, found {shown}")
