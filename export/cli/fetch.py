"""``python -m export fetch``: bring a default checkpoint to this machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from export.cli.console import add_output_options, emit, emit_json
from export.progress import LINE_EVERY_S, say

if TYPE_CHECKING:
    from export.cli.console import Parser

DESCRIPTION = """\
Download a default checkpoint into a cache folder, once. From then on its name can stand for it in
every command. Checkpoints of your own need no fetch: give their folder or .gguf file to build."""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "fetch",
        prog="python -m export fetch",
        help="download a default checkpoint",
        description=DESCRIPTION,
    )
    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(_known())}")
    add_output_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from export.fetch import fetch

    path = fetch(args.name, progress=_nothing if args.quiet else _line_shower())
    if sys.stderr.isatty() and not args.quiet:
        say("")
    if args.json:
        emit_json({"name": args.name, "path": str(path)})
    else:
        emit(f"{args.name} is in {path}\n")
    return 0


def _nothing(_line: str) -> None:
    pass


def _line_shower() -> Callable[[str], None]:
    """On a terminal a line replaces the one before; elsewhere a stage's lines are thinned out."""
    if sys.stderr.isatty():
        return lambda line: say(f"\r\x1b[K{line}", end="")
    last_stage, next_s = "", 0.0

    def show(line: str) -> None:
        nonlocal last_stage, next_s
        stage, now = line.partition(":")[0], time.monotonic()
        if stage != last_stage or now >= next_s:
            last_stage, next_s = stage, now + LINE_EVERY_S
            say(line)

    return show


def _known() -> list[str]:
    from export.fetch import KNOWN

    return sorted(KNOWN)
