"""One text on its way from the engine loop's thread to the thread that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from threading import TIMEOUT_MAX, Condition
from time import monotonic

from runtime.completion import Completion, Delta


class State(Enum):
    MORE = auto()
    END = auto()
    TIMED_OUT = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """``text``: UTF-8, whole characters."""

    state: State
    text: bytes = b""
    token_ids: tuple[int, ...] = ()


class Inbox:
    """``put`` and ``end`` are for one thread, ``read`` for another, ``wait`` for any."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._text = bytearray()
        self._token_ids: list[int] = []
        self._ended: Completion | Exception | None = None

    def put(self, delta: Delta) -> None:
        with self._changed:
            self._text += delta.text.encode("utf-8")
            self._token_ids += delta.token_ids
            self._changed.notify_all()

    def end(self, ended: Completion | Exception) -> None:
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    @property
    def ended(self) -> Completion | Exception | None:
        """What came of it; None while it goes on."""
        return self._ended

    def read(
        self, timeout_s: float | None, most_bytes: int | None, most_token_ids: int | None
    ) -> Piece:
        """The next piece, of so many bytes (at least 4) and token ids at most; None for what is not
        wanted, which is dropped. Waits until there is some, for ``timeout_s`` seconds at most
        (None: without end). Raises what stopped the text, behind its last piece."""
        until = _until(timeout_s)
        with self._changed:
            while True:
                text, token_ids = self._take_text(most_bytes), self._take_token_ids(most_token_ids)
                if text or token_ids:
                    return Piece(State.MORE, text, token_ids)
                if isinstance(self._ended, Exception):
                    raise self._ended
                if self._ended is not None:
                    return Piece(State.END)
                if not self._wait(until):
                    return Piece(State.TIMED_OUT)

    def wait(self, timeout_s: float | None) -> bool:
        """Until the text has ended; False where the time was too short. Raises what stopped it."""
        until = _until(timeout_s)
        with self._changed:
            while self._ended is None:
                if not self._wait(until):
                    return False
        if isinstance(self._ended, Exception):
            raise self._ended
        return True

    def _wait(self, until: float | None) -> bool:
        """For a change, until a time of the clock; False when it is past."""
        left = TIMEOUT_MAX if until is None else until - monotonic()
        if left <= 0:
            return False
        self._changed.wait(min(left, TIMEOUT_MAX))
        return True

    def _take_text(self, most: int | None) -> bytes:
        end = len(self._text)
        if most is not None and most < end:
            end = most
            while end > 0 and self._text[end] & 0xC0 == 0x80:  # inside of a character
                end -= 1
        taken = bytes(self._text[:end])
        del self._text[:end]
        return b"" if most is None else taken

    def _take_token_ids(self, most: int | None) -> tuple[int, ...]:
        end = len(self._token_ids) if most is None else most
        taken = tuple(self._token_ids[:end])
        del self._token_ids[:end]
        return () if most is None else taken


def _until(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else monotonic() + timeout_s
