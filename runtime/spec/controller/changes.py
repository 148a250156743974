"""What the controller says about itself: one line for each change of mind."""

from __future__ import annotations

from collections.abc import Callable

SPACING = 64
"""Rounds between two lines that are told: a few sentences."""


class Changes:
    """``note`` is the last line, told or not."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.note = ""
        self._tell = tell
        self._told_at: int | None = None
        self._num_untold = 0

    def add(self, round_number: int, line: str) -> None:
        """A change of mind before that round; told at once, or counted by the next one that is."""
        self.note = line
        if self._tell is None:
            return
        if self._told_at is not None and round_number - self._told_at < SPACING:
            self._num_untold += 1
            return
        between = f" ({self._num_untold} changes in between)" if self._num_untold else ""
        self._tell(line + between)
        self._told_at, self._num_untold = round_number, 0
