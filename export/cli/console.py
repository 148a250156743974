"""Results go to stdout; progress, notes and errors go to stderr."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from engines.console import OutputClosed, emit, prepare_streams, say
from engines.errors import UsageError, as_line
from export.progress import Report, progress

__all__ = [
    "Display",
    "OutputClosed",
    "Parser",
    "add_output_options",
    "display",
    "emit",
    "emit_json",
    "prepare_streams",
    "say",
]


class Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageError, so that they end like every other error.

    Options of ``type=Path`` refuse the empty text, which pathlib takes for the current folder.
    """

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.register("type", Path, _path)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("'' names no place; write . for the current folder")
    return Path(text)


def emit_json(result: Mapping[str, object]) -> None:
    """Write one JSON object to stdout."""
    emit(json.dumps(result, indent=1) + "\n")


class Display:
    """Shows a build as it goes (``export.build.progress.Reporter``)."""

    def __init__(self, report: Report, quiet: bool) -> None:
        self._report = report
        self._quiet = quiet

    def say(self, text: str) -> None:
        if not self._quiet:
            say(as_line(text))

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
