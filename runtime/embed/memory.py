"""A C caller's memory, read and written through cffi."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.errors import UsageError
from runtime.embed.statuses import SmallBufferError

MOST_ITEMS = 2**31
"""A count beyond it is one that nobody has set."""


class Memory:
    """``ffi`` is the library's. Pointers come as cffi has them; NULL is refused by name, and so is
    text that is not UTF-8."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi

    def is_null(self, pointer: Any) -> bool:
        return bool(pointer == self._ffi.NULL)

    def text(self, pointer: Any, name: str) -> str:
        if self.is_null(pointer):
            raise UsageError(f"{name} is NULL, expected text")
        data: bytes = self._ffi.string(pointer)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{name} is not UTF-8 (at byte {error.start})") from None

    def items(self, pointer: Any, num: int, name: str) -> list[Any]:
        """Of an array; it may be NULL where it has none."""
        if num == 0:
            return []
        if self.is_null(pointer):
            raise UsageError(f"{name} is NULL, expected {num} items")
        if num > MOST_ITEMS:
            raise UsageError(f"{name} has {num} items, expected at most {MOST_ITEMS}")
        return [pointer[index] for index in range(num)]

    def texts(self, pointer: Any, num: int, name: str) -> list[str]:
        return [self.text(each, f"an item of {name}") for each in self.items(pointer, num, name)]

    def token_ids(self, pointer: Any, num: int, name: str) -> list[int]:
        return [int(each) for each in self.items(pointer, num, name)]

    def put_text(self, text: str, buffer: Any, size: int, needed: Any) -> None:
        """Into a buffer of ``size`` bytes, with a NUL behind it."""
        data = text.encode("utf-8") + b"\0"
        if self._fits(len(data), "bytes", buffer, size, needed):
            self._ffi.memmove(buffer, data, len(data))

    def put_token_ids(self, ids: Sequence[int], buffer: Any, size: int, needed: Any) -> None:
        """Into a buffer of ``size`` ids."""
        if self._fits(len(ids), "token ids", buffer, size, needed):
            buffer[0 : len(ids)] = list(ids)

    def _fits(self, num: int, unit: str, buffer: Any, size: int, needed: Any) -> bool:
        """False where the caller only asks how much there is."""
        if not self.is_null(needed):
            needed[0] = num
        if self.is_null(buffer):
            if size > 0 or self.is_null(needed):
                raise UsageError(
                    "the buffer is NULL, expected one; or size 0 and a place for what is needed"
                )
            return False
        if size < num:
            raise SmallBufferError(f"the buffer holds {size} {unit}, {num} are needed")
        return True
