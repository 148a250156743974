"""The streams of a command line: results go to stdout, everything else to stderr."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


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


def say(line: str, end: str = "\n") -> None:
    """Write one line to stderr at once; when nobody can read it, that is not worth an error."""
    try:
        sys.stderr.write(line + end)
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
