"""What a build tells while it works; the command line shows it, tests record it."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Listens to one build."""

    def say(self, text: str) -> None:
        """One line that stays: what was found, decided or finished."""
        ...

    def step(self, what: str, done: int, total: int) -> None:
        """``done`` of ``total`` parts of ``what`` are finished."""
        ...


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def step(self, what: str, done: int, total: int) -> None:
        pass
