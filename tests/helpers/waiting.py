"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether something comes true in that time; looks a hundred times a second."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()
