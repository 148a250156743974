"""Results go to stdout; progress, notes and errors go to stderr."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from engines.errors import UsageError
from export.progress import Report, progress, say, silence


class Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageError, so that they end like every other error."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


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
        silence(sys.stdout)
        raise OutputClosed(error) from None


def emit_json(result: Mapping[str, object]) -> None:
    """Write one JSON object to stdout."""
    emit(json.dumps(result, indent=1) + "\n")


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


class Display:
    """Shows a build as it goes (``export.build.progress.Reporter``)."""

    def __init__(self, report: Report, quiet: bool) -> None:
        self._report = report
        self._quiet = quiet

    def say(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def step(self, what: str, done: int, total: int) -> None:
        self._report(what, done / total if total else 1.0, f"{done} of {total}")


@contextmanager
def display(quiet: bool) -> Iterator[Display]:
    """A bar on a terminal, plain lines elsewhere, nothing when quiet."""
    with progress(quiet) as report:
        yield Display(report, quiet)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    parser.add_argument("--quiet", action="store_true", help="results and errors only")
