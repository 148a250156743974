"""Opaque handles: numbers in the shape of pointers, which nobody follows.

A number is given out once in a process, so what is closed is known to be closed for ever, and a
pointer to anything else is found to be no handle.
"""

from __future__ import annotations

from itertools import count
from threading import Lock
from typing import Generic, TypeVar

from runtime.embed.statuses import HandleError

STEP = 16
"""Between two handles: aligned as pointers are."""

Thing = TypeVar("Thing")
_numbers = count(1)


class Handles(Generic[Thing]):
    """The open things of one kind. May be used from any thread."""

    def __init__(self, kind: str, ending: str) -> None:
        """``kind`` and ``ending`` for messages, such as "request" and "destroyed"."""
        self._kind = kind
        self._ending = ending
        self._lock = Lock()
        self._things: dict[int, Thing] = {}

    def add(self, thing: Thing) -> int:
        with self._lock:
            handle = next(_numbers) * STEP
            self._things[handle] = thing
        return handle

    def get(self, handle: int) -> Thing:
        """Raises HandleError."""
        with self._lock:
            return self._known(handle)

    def pop(self, handle: int) -> Thing:
        """The same, and it is none from now on: of two threads, one gets it."""
        with self._lock:
            thing = self._known(handle)
            del self._things[handle]
        return thing

    def all(self) -> list[Thing]:
        with self._lock:
            return list(self._things.values())

    def _known(self, handle: int) -> Thing:
        if handle not in self._things:
            found = f"{handle:#x} is no {self._kind}" if handle else f"the {self._kind} is NULL"
            raise HandleError(f"{found}, expected one that is not {self._ending} yet")
        return self._things[handle]
