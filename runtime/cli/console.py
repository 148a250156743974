"""Where the commands write: results to stdout, everything else to stderr.

Long work shows a bar on a terminal, plain lines elsewhere, and nothing when quiet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from engines.console import OutputClosed, emit, prepare_streams, say

__all__ = ["OutputClosed", "Tick", "busy", "emit", "prepare_streams", "progress", "say", "tell"]

Tick = Callable[[int, str], None]
"""Called with the number of items done and a few words on the last one."""

PLAIN_LINES, MOST_STEPS = 10, 20
"""Lines that progress takes where there is no terminal; up to so many steps get one each."""


def tell(text: str) -> None:
    """Write to stderr at once, as ``say`` does, without ending the line."""
    say(text, end="")


@contextmanager
def busy(what: str, *, quiet: bool, plain: bool = True) -> Iterator[Callable[[str], None]]:
    """Show ``what`` while the body runs; ``plain`` also says so where there is no terminal.

    The body gets what says a line of its own meanwhile, unless quiet.
    Nothing moves meanwhile: loading measures the machine, and an animation is a thread of its own.
    """
    on_terminal = sys.stderr.isatty() and not quiet
    if on_terminal:
        tell(f"{what} ...")
    elif plain and not quiet:
        say(what)

    def announce(line: str) -> None:
        if on_terminal:
            tell(f"\r\x1b[2K{line}\n{what} ...")
        elif not quiet:
            say(line)

    try:
        yield announce
    finally:
        if on_terminal:
            tell("\r\x1b[2K")


@contextmanager
def progress(what: str, total: int, *, quiet: bool, done: int = 0) -> Iterator[Tick]:
    """Show how many of ``total`` items are done, beginning at ``done``."""
    if quiet:
        yield lambda _done, _detail: None
    elif sys.stderr.isatty() and _has_rich():
        with _bar(what, total, done) as tick:
            yield tick
    else:
        yield _lines(what, total)


def _lines(what: str, total: int) -> Tick:
    shown, num_lines = -1, total if total <= MOST_STEPS else PLAIN_LINES

    def tick(done: int, detail: str) -> None:
        nonlocal shown
        share = done * num_lines // total
        if share > shown:
            shown = share
            say(f"{what}: {done} of {total} ({detail})")

    return tick


@contextmanager
def _bar(what: str, total: int, done: int) -> Iterator[Tick]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    # Drawn on ticks only: a thread that redraws in between would take time from what is measured.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(what, total=total, completed=done, detail="")
        bar.refresh()
        yield lambda now, detail: bar.update(task, completed=now, detail=detail, refresh=True)


def _has_rich() -> bool:
    try:
        import_module("rich.console")
    except ImportError:
        return False
    return True
