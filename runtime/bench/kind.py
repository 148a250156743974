"""What a kind of measurement is to the command line: options in, figures out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
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
