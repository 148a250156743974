"""``python -m runtime bench``: figures with the command, the machine and the versions.

What is measured is named by a KIND with options of its own, or by an option of ``bench`` itself.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shlex
from functools import partial

from engines.codec import encode
from engines.errors import UsageError
from runtime.bench import host, lanes, outcomes, overlap
from runtime.bench.dataset import kind as dataset
from runtime.bench.figures import Neighbours
from runtime.bench.kind import Compared, Figures, Kind
from runtime.bench.own_options import add_own_options, own_arguments, refuse_own, task_of
from runtime.bench.replay import kind as replay
from runtime.bench.replay.shipped import shipped
from runtime.cli.console import emit, progress
from runtime.cli.options import PROGRAM, Commands, add_command, add_output_options
from runtime.cli.report import number, to_json
from runtime.doctor import machine

KINDS: tuple[Kind, ...] = (host.KIND, lanes.KIND, overlap.KIND)
TASKS: dict[str, Kind] = {
    "replay": replay.KIND,
    "log_outcomes": outcomes.KIND,
    "dataset": dataset.KIND,
}
"""By the option that asks for them."""

DESCRIPTION = """\
Measure the runtime on this machine: one kind of figures at a time, named by a KIND, which has its
own options, or by --replay, --log-outcomes or --dataset. Every report names the command, the
machine, the versions, how often it ran, and how busy other processes kept the machine meanwhile."""

EXAMPLES = f"""\
shipped profiles: {", ".join(shipped())}

examples:
  python -m runtime bench --replay budgets
  python -m runtime bench --replay reproduction --run B=16 --clock real
  python -m runtime bench --bundle engines/bundles/demo --log-outcomes outcomes.jsonl
  python -m runtime bench --replay outcomes.jsonl --target-ms 15 --draft-ms 1.2
  python -m runtime bench --bundle engines/bundles/demo --dataset spec_bench.jsonl --limit 4
  python -m runtime bench host
  python -m runtime bench lanes --bundle engines/bundles/demo
  python -m runtime bench overlap --bundle engines/bundles/demo --json

Engines by themselves: python -m export bench --help. Modes against each other, on prompts:
python -m runtime compare --help
"""


def add_to(commands: Commands) -> None:
    """Register the command and a sub-command for each kind."""
    parser = add_command(
        commands, "bench", "measure the runtime on this machine", DESCRIPTION, EXAMPLES
    )
    add_own_options(parser)
    parser.set_defaults(run=run_task)
    kinds: Commands = parser.add_subparsers(metavar="KIND")
    for kind in KINDS:
        own = kinds.add_parser(
            kind.name,
            help=kind.purpose,
            prog=f"{PROGRAM} bench {kind.name}",
            description=kind.description,
            epilog=kind.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        kind.add_options(own)
        add_output_options(own)
        own.set_defaults(run=partial(run, kind))


def run_task(args: argparse.Namespace) -> int:
    """Measure what an option of ``bench`` itself asks for."""
    task = task_of(args)
    if task is None:
        names = ", ".join(kind.name for kind in KINDS)
        raise UsageError(
            f"say what to measure: --replay, --log-outcomes, --dataset, or a KIND ({names})"
        )
    return _run(TASKS[task], own_arguments(args))


def run(kind: Kind, args: argparse.Namespace) -> int:
    """Measure one kind, print its report and return the exit code."""
    refuse_own(args, kind.name)
    return _run(kind, args)


def _run(kind: Kind, args: argparse.Namespace) -> int:
    neighbours = Neighbours()
    figures = kind.measure(args, partial(progress, quiet=args.quiet))
    header = _header(kind, args, neighbours.cores())
    if args.json:
        record = {"kind": kind.name, **header, "figures": encode(figures)}
        emit(to_json(record | {"formulas": dict(kind.formulas)}))
    else:
        emit(as_text(kind, header, figures))
    return int(isinstance(figures, Compared) and not figures.is_identical)


def as_text(kind: Kind, header: dict[str, object], figures: Figures) -> str:
    """The report for people."""
    versions = header["versions"]
    assert isinstance(versions, dict)
    others = header["other_cores"]
    assert others is None or isinstance(others, float)
    lines = [
        f"$ {header['command']}",
        f"machine: {machine()}; other processes used {number(others, 2)} cores meanwhile",
        "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        "",
        figures.as_text().rstrip("\n"),
        "",
        *(f"{name} = {formula}" for name, formula in kind.formulas.items()),
    ]
    return "\n".join(lines) + "\n"


def _header(kind: Kind, args: argparse.Namespace, others: float | None) -> dict[str, object]:
    return {
        "command": shlex.join([*PROGRAM.split(), *args.command_line]),
        "machine": encode(machine()),
        "other_cores": others,
        "versions": {"python": platform.python_version()} | _versions(kind.packages),
    }


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
