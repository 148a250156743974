"""Ctrl-C and its like, held back until what is being done is whole.

A training step or a file half done would make the state on disk useless; both end within a second
or so, and a second ctrl-C does not wait.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Whether somebody asked to stop. ``obey`` then does what the signal would have done."""

    def __init__(self) -> None:
        self._asked: int | None = None

    def __bool__(self) -> bool:
        return self._asked is not None

    def ask(self, number: int) -> None:
        self._asked = number

    def obey(self) -> None:
        """Let the signal act, through the handlers that were there before; once."""
        number, self._asked = self._asked, None
        if number is not None:
            os.kill(os.getpid(), number)


@contextmanager
def held_back() -> Iterator[Stop]:
    """Give a Stop that signals set instead of acting. Ignored ones stay ignored.

    Outside the main thread, where no handler can be set, it is never asked.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {
        number: signal.getsignal(number)
        for number in SIGNALS
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        restore()
        stop.ask(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
        stop.obey()
