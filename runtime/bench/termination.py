"""SIGTERM, heard as ctrl-C is: what runs is closed in good order, and what was done can be kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

EXIT_CODE = 128 + signal.SIGTERM
"""What a shell reports of a process that SIGTERM has ended."""


@contextmanager
def heard() -> Iterator[None]:
    """SIGTERM raises SystemExit(143) in the body, once: ``timeout`` sends it twice, to the process
    and to its group. Where the host program has a handler of its own, or this is not its main
    thread, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(EXIT_CODE)
