"""Where the commands write: results to stdout, everything else to stderr.

Long work shows a bar on a terminal, plain lines elsewhere, and nothing when quiet.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Tick = Callable[[int, str], None]
"""Called with the number of items done and a few words on the last one."""

PLAIN_LINES = 10


class OutputClosed(Exception):  # noqa: N818  (an ending, not an error: the reader has had enough)
    """Standard output takes no more: its reader went away, or the disk is full."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror or error}")
        self.errno = error.errno


def emit(text: str) -> None:
    """Write to stdout at once. Raises OutputClosed; from then on stdout swallows everything."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _silence(sys.stdout)
        raise OutputClosed(error) from None


def say(line: str) -> None:
    """Write one line to stderr."""
    tell(line + "\n")


def tell(text: str) -> None:
    """Write to stderr at once; when nobody can read it, that is not worth an error."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def prepare_streams() -> None:
    """Make stdout and stderr fit to write to, whatever the shell handed over.

    A terminal that cannot show a character shows ``?`` instead of ending the program, and a
    stream that was closed before the start (``>&-``) swallows what is written.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _silence(stream: TextIO) -> None:
    """Point a broken stream at the null device: the interpreter flushes it once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    finally:
        os.close(null)


@contextmanager
def busy(what: str, *, quiet: bool, plain: bool = True) -> Iterator[None]:
    """Show ``what`` while the body runs; ``plain`` also says so where there is no terminal.

    Nothing moves meanwhile: loading measures the machine, and an animation is a thread of its own.
    """
    on_terminal = sys.stderr.isatty() and not quiet
    if on_terminal:
        tell(f"{what} ...")
    elif plain and not quiet:
        say(what)
    try:
        yield
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
    shown = -1

    def tick(done: int, detail: str) -> None:
        nonlocal shown
        share = done * PLAIN_LINES // total
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
        import rich.console  # noqa: F401  (only whether it is there)
    except ImportError:
        return False
    return True
