"""``python -m export cache``: the compiled engines kept for later builds."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from engines.codec import encode
from engines.errors import UsageError, as_line
from export.build.plan import in_words
from export.cli.console import add_output_options, emit, emit_json, say
from export.tensorrt.cache import DEFAULT_GB, LIMIT_VARIABLE, MOST_GB, EngineCache

if TYPE_CHECKING:
    from export.cli.console import Parser
    from export.tensorrt.cache import CacheEntry

DESCRIPTION = f"""\
TensorRT builds keep each compiled engine in a cache, so that no engine is compiled twice. Beyond
{DEFAULT_GB:.0f} GB the least recently used are dropped; ${LIMIT_VARIABLE} sets another limit,
0 turns the cache off. Bundles hold copies: clearing the cache breaks none."""

EXAMPLES = """\
examples:
  python -m export cache list
  python -m export cache clear --older-than 30
  python -m export cache clear --max-size 5
  python -m export cache clear"""

_HEADINGS: tuple[str, ...] = (
    "engine",
    "size",
    "last used",
    "source",
    "backend",
    "precision",
    "capability",
)
_DAY_S = 86400.0
_MOST = MOST_GB
"""Days, or GB: still finite in seconds and bytes."""
_LATEST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    name = "python -m export cache"
    parser = commands.add_parser(
        "cache",
        prog=name,
        help="list or clear the compiled engines",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(metavar="list|clear", required=True)
    lists = actions.add_parser(
        "list",
        prog=f"{name} list",
        help="show the engines, the last used first",
        description="Show the engines, the last used first; in a pipe or a file with whole values "
        "and a tab between them.",
    )
    lists.set_defaults(command=run_list)
    clears = actions.add_parser(
        "clear",
        prog=f"{name} clear",
        help="remove engines",
        description="Remove all engines, or those that the options choose.",
    )
    clears.add_argument(
        "--older-than", type=_amount, metavar="DAYS", help="those not used for this many days"
    )
    clears.add_argument(
        "--max-size",
        type=_amount,
        metavar="GB",
        help="the least recently used, until the others take no more than this",
    )
    clears.set_defaults(command=run_clear)
    for action in (lists, clears):
        add_output_options(action)


@contextmanager
def _usable(cache: EngineCache) -> Iterator[None]:
    """What a folder cannot do becomes UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot use the engine cache {cache.folder}: {error.strerror or error}; "
            "SSD_TRT_CACHE names another folder"
        ) from None


def run_list(args: argparse.Namespace) -> int:
    cache = EngineCache()
    with _usable(cache):
        entries = cache.entries()
    num_bytes = sum(entry.num_bytes for entry in entries)
    if args.json:
        facts: dict[str, object] = {"folder": str(cache.folder), "max_bytes": cache.max_bytes}
        emit_json({**facts, "num_bytes": num_bytes, "engines": encode(entries)})
        return 0
    if not sys.stdout.isatty():
        emit(plain(entries))
    elif entries:
        emit(table(entries))
    if not args.quiet:
        folder = as_line(str(cache.folder))
        held = f"{_engines(len(entries))}, {in_words(num_bytes)} of {in_words(cache.max_bytes)}"
        say(f"{held} in {folder}" if entries else f"no engines in {folder}")
    return 0


def run_clear(args: argparse.Namespace) -> int:
    cache = EngineCache(note=(lambda _line: None) if args.quiet else _note)
    older_than_s = None if args.older_than is None else args.older_than * _DAY_S
    max_bytes = None if args.max_size is None else int(args.max_size * 1e9)
    with _usable(cache):
        num_removed, freed = cache.clear(older_than_s, max_bytes)
    folder = as_line(str(cache.folder))
    if args.json:
        emit_json({"folder": str(cache.folder), "num_removed": num_removed, "freed_bytes": freed})
    elif num_removed or freed:
        emit(f"removed {_engines(num_removed)} from {folder}, freed {in_words(freed)}\n")
    else:
        emit(f"nothing to remove in {folder}\n")
    return 0


def _note(line: str) -> None:
    say(as_line(line))


def table(entries: Sequence[CacheEntry]) -> str:
    """For people: short keys, sizes in words, local time, aligned."""
    rows = [_HEADINGS]
    for entry in entries:
        used = _time(entry).astimezone().strftime("%Y-%m-%d %H:%M")
        rows.append((entry.key[:12], in_words(entry.num_bytes), used, *_facts(entry)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def plain(entries: Sequence[CacheEntry]) -> str:
    """For programs: headings, whole keys, bytes, UTC, a tab between cells."""
    rows = [_HEADINGS]
    for entry in entries:
        used = _time(entry).isoformat(timespec="seconds")
        rows.append((entry.key, str(entry.num_bytes), used, *_facts(entry)))
    return "".join("\t".join(row) + "\n" for row in rows)


def _time(entry: CacheEntry) -> datetime:
    """Of the last use. File systems hold times that no calendar does."""
    return datetime.fromtimestamp(min(max(entry.last_used_s, 0), _LATEST_S), UTC)


def _facts(entry: CacheEntry) -> tuple[str, ...]:
    facts = entry.facts
    if facts is None:
        return "(unreadable)", "-", "-", "-"
    cells = (facts.source, facts.backend, facts.precision, " ".join(facts.capabilities))
    # A tab or a line break in a name would look like a cell or a row.
    return tuple(map(as_line, cells))


def _engines(count: int) -> str:
    return f"{count} engine" if count == 1 else f"{count} engines"


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MOST:g}")
    return value
