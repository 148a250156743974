"""Parses the command line, runs one command, and turns every ending into an exit code.

0    done                                    2    error: one line on stderr
1    verify found the engine to be wrong     130  ctrl-C, nothing left behind
                                             129, 143  the same after SIGHUP, SIGTERM
                                             141  standard output was closed (``| head -1``)
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from engines.errors import SsdError, as_line
from export.cli import bench, build, cache, distill, fetch, inspect, verify
from export.cli.console import OutputClosed, Parser, emit, prepare_streams
from export.progress import say

DESCRIPTION = """\
Compile a target model, and a draft for it, into a bundle that python -m runtime runs."""

EXAMPLES = """\
examples:
  python -m export fetch smollm2-135m
  python -m export build --target smollm2-135m --draft smollm2-135m-draft \\
      --precision int8 --out engines/bundles/demo
  python -m export inspect engines/bundles/demo
  python -m export verify engines/bundles/demo
  python -m export bench engines/bundles/demo

python -m export COMMAND --help tells more about each.
"""

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal to end, as an exception: a half-written bundle is removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: the process's own) and return its exit code."""
    prepare_streams()
    try:
        with _signals_raise():
            code = _run(sys.argv[1:] if argv is None else list(argv))
        # Flushed here, or the interpreter would meet the closed pipe while it shuts down.
        emit("")
    except OutputClosed as closed:
        return 141 if closed.errno == errno.EPIPE else _fail(str(closed))
    except SsdError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_explained(error))
    except MemoryError as error:
        return _fail(f"not enough memory ({error})")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except Terminated as ending:
        say("terminated")
        return ending.exit_code
    return code


def build_parser() -> Parser:
    """The parser of all commands; ``args.command`` is the function that runs the chosen one."""
    parser = Parser("python -m export", DESCRIPTION, EXAMPLES)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for module in (fetch, build, inspect, verify, bench, distill, cache):
        module.add_to(commands)
    return parser


def _run(argv: list[str]) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    code: int = args.command(args)
    return code


def _explained(error: OSError) -> str:
    if error.filename:
        return f"{error.strerror or error}: {error.filename}"
    try:
        os.getcwd()
    except OSError as gone:
        return f"the working folder cannot be used ({gone.strerror}); cd into one that exists"
    return error.strerror or str(error)


def _fail(message: str) -> int:
    say("error: " + as_line(message))
    return 2


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Only a main thread may set handlers; elsewhere signals are the host's.

    What is ignored (SIGHUP under nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_IGN]
    before = {n: signal.signal(n, _terminate) for n in _ENDING if n not in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    for each in _ENDING:  # a second one must not cut the cleaning up short
        signal.signal(each, signal.SIG_IGN)
    raise Terminated(number)
