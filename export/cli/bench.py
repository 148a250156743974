"""``python -m export bench``: how long each kind of call of an engine takes."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engines.bundle import Bundle, open_bundle
from engines.codec import encode
from engines.errors import BundleMissingError
from export.cli.console import add_output_options, emit, emit_json, say

if TYPE_CHECKING:
    from export.bench.measure import (
        BenchOptions,
        BenchResult,
        CallFigures,
        EngineFigures,
        Progress,
    )
    from export.cli.console import Parser

DESCRIPTION = """\
Time the calls that decoding is made of, each engine by itself: a prompt chunk, a step of plain
decoding, a verification of K drafted tokens, the draft's root pass, a step of W branches. Engines
on ONNX Runtime run as the runtime runs them, a draft with one thread on the last core, and their
calls take turns, so that a machine that drifts meets all alike; compiled plans need their GPU.
pip install 'ssd-trt[bench]'"""

EXAMPLES = """\
examples:
  python -m export bench engines/bundles/demo
  python -m export bench engines/bundles/demo --role draft --length 512 --json
  python -m export bench engines/bundles/demo --role target --tokens 2 --iterations 200
"""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "bench",
        prog="python -m export bench",
        help="time the calls of a bundle's engines",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    option = parser.add_argument
    option("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    option(
        "--role",
        default="both",
        choices=("target", "draft", "both"),
        help="which engine (default: %(default)s)",
    )
    for name, default, metavar, text in (
        ("--iterations", 50, "N", "times that each call is timed"),
        ("--warm-up", 5, "N", "times that it runs before, each turn"),
        ("--batch", 1, "B", "slots in a call; prompts are one slot's"),
    ):
        help_text = f"{text} (default: %(default)s)"
        option(name, type=int, default=default, metavar=metavar, help=help_text)
    option(
        "--length",
        type=int,
        metavar="L",
        help="tokens of text in the cache before the call (default: 256, or what fits)",
    )
    option(
        "--tokens",
        type=int,
        metavar="T",
        help="tokens of a verification (default: K + 1, the most)",
    )
    option(
        "--threads",
        type=int,
        metavar="N",
        help="threads on ONNX Runtime (default: one a core for a target, 1 for a draft)",
    )
    add_output_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from export.bench.measure import BenchOptions, bench

    options = BenchOptions(
        role=args.role,
        iterations=args.iterations,
        warm_up=args.warm_up,
        length=args.length,
        tokens=args.tokens,
        batch=args.batch,
        threads=args.threads,
    )
    bundle = _open(args.bundle)
    with ticks(args.quiet) as tick:
        result = bench(bundle, options, tick)
    if args.json:
        emit_json(facts(result, args.bundle, options))
    else:
        emit(text(result, args.bundle, options))
    return 0


def _open(path: Path) -> Bundle:
    try:
        return open_bundle(path)
    except BundleMissingError as error:
        raise BundleMissingError(f"{error} (with --draft NAME for a draft to time, too)") from None


@contextmanager
def ticks(quiet: bool) -> Iterator[Progress]:
    """One line that counts on a terminal, one line a call elsewhere, nothing when quiet.

    It is written between two timed calls; a bar that redraws itself would take time from them.
    """
    on_terminal = sys.stderr.isatty()

    def tick(what: str, done: int, total: int) -> None:
        if quiet:
            return
        if on_terminal:
            say(f"\r\x1b[2K{what}: {done} of {total}", end="")
        elif done == 0:
            say(f"{what}: {total} times")

    try:
        yield tick
    finally:
        if on_terminal and not quiet:
            say("\r\x1b[2K", end="")


def command(bundle: Path, options: BenchOptions) -> str:
    """The command line of this run, every option spelled out."""
    words = ["python", "-m", "export", "bench", str(bundle), "--role", options.role]
    words += ["--iterations", str(options.iterations), "--warm-up", str(options.warm_up)]
    words += ["--batch", str(options.batch)]
    for name in ("length", "tokens", "threads"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def facts(result: BenchResult, bundle: Path, options: BenchOptions) -> dict[str, object]:
    """Everything as JSON values; times in seconds."""
    from export.bench.measure import GAIN_FORMULA, RATE_FORMULA

    figures = encode(result)
    assert isinstance(figures, dict)
    return {
        "command": command(bundle, options),
        "bundle": str(bundle),
        **figures,
        "formulas": {"tokens_per_second": RATE_FORMULA, "verify_gain": GAIN_FORMULA},
    }


HEADERS = ("", "batch", "tokens", "rows", "p50 ms", "p90 ms", "p99 ms", "mean", "min", "tokens/s")


def text(result: BenchResult, bundle: Path, options: BenchOptions) -> str:
    """The figures for people; times in milliseconds."""
    from export.bench.measure import GAIN_FORMULA, RATE_FORMULA

    lines = [
        command(bundle, options),
        f"{result.precision} bundle for {result.backend}",
        ", ".join(result.machine.values()),
        ", ".join(f"{name} {version}" for name, version in result.versions.items()),
    ]
    rows = [HEADERS, *(row for engine in result.engines for row in map(_row, engine.calls))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    for engine in result.engines:
        lines += ["", _title(engine)]
        for row in (HEADERS, *map(_row, engine.calls)):
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        if engine.verify_gain is not None:
            lines.append(f"verify gain {engine.verify_gain:.2f}")
    lines += ["", f"tokens/s = {RATE_FORMULA}"]
    if any(engine.verify_gain is not None for engine in result.engines):
        lines.append(f"verify gain = {GAIN_FORMULA}")
    return "\n".join(lines) + "\n"


def _title(engine: EngineFigures) -> str:
    if engine.threads is None:
        return f"{engine.role}: {engine.measured}"
    threads = "1 thread" if engine.threads == 1 else f"{engine.threads} threads"
    return f"{engine.role}, {threads}: {engine.measured}"


def _row(figures: CallFigures) -> tuple[str, ...]:
    latency, rate = figures.latency, figures.tokens_per_second
    times = (latency.p50_s, latency.p90_s, latency.p99_s, latency.mean_s, latency.min_s)
    return (
        figures.kind,
        str(figures.batch),
        str(figures.tokens),
        str(figures.rows),
        *(f"{1e3 * seconds:.3f}" for seconds in times),
        "-" if rate is None else f"{rate:.1f}",
    )
