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
        """A change of mind before that round."""
        self.note = line
        self._num_untold += 1
        self.tell_rest(round_number)

    def tell_rest(self, round_number: int) -> None:
        """Tell the last change if it is untold and the time has come. Called before each round, so
        what was told last is never wrong for long."""
        if self._tell is None or not self._num_untold:
            return
        if self._told_at is not None and round_number - self._told_at < SPACING:
            return
        num_others = self._num_untold - 1
        between = f" ({num_others} changes in between)" if num_others else ""
        self._tell(self.note + between)
        self._told_at, self._num_untold = round_number, 0
