"""What a kind of measurement is to the command line: options in, figures out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

Tick: TypeAlias = Callable[[int, str], None]
Show: TypeAlias = Callable[[str, int], AbstractContextManager[Tick]]
"""``with show(what, total) as tick`` tells a waiting user of ``tick(done, a few words)``."""


class Figures(Protocol):
    """What was measured: a dataclass, which is what ``--json`` prints."""

    def as_text(self) -> str:
        """The same for people, tables and formulas included."""


@runtime_checkable
class Compared(Protocol):
    """Figures of outputs that must be equal: the exit code is 1 where they are not."""

    @property
    def is_identical(self) -> bool:
        """Nothing that should be equal differs."""


@runtime_checkable
class Explained(Protocol):
    """Figures that have only some of their kind's formulas to explain."""

    @property
    def explains(self) -> Set[str]:
        """The names of those."""


@runtime_checkable
class Interruptible(Protocol):
    """Figures that ctrl-C may have cut short: the exit code is 130 then."""

    @property
    def is_interrupted(self) -> bool:
        """They are of a part of what was asked for."""


@runtime_checkable
class Failable(Protocol):
    """Figures that an engine's failure may have cut short: the exit code is 2 then."""

    @property
    def failure(self) -> str | None:
        """Who could not go on, and why."""


@runtime_checkable
class CutShort(Protocol):
    """Figures of what a file keeps of a run that ended early, by whatever."""

    @property
    def cut_short(self) -> tuple[str, int] | None:
        """A line that says what is kept, and the exit code; None of a run that came to its end."""


@runtime_checkable
class Recorded(Protocol):
    """Figures whose JSON is not just their fields."""

    def as_record(self) -> Mapping[str, object]:
        """What ``--json`` prints, JSON-ready."""


@runtime_checkable
class Pictured(Protocol):
    """Figures that ``--html`` draws."""

    def as_html(self, header: Mapping[str, str], formulas: Mapping[str, str]) -> str:
        """A page that needs no other file. ``header``: command, machine, versions, by name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. ``add_options`` gives its parser what ``measure`` reads from the arguments.

    ``packages`` are the distributions whose versions belong beside the figures; ``formulas`` say
    how a figure that was not itself measured is made from others.
    """

    name: str
    purpose: str
    description: str
    examples: str
    packages: tuple[str, ...]
    formulas: Mapping[str, str]
    add_options: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Show], Figures]
