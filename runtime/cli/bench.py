"""``python -m runtime bench KIND``: figures with the command, the machine and the versions."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import shlex
from functools import partial

from engines.codec import encode
from runtime.bench import host, lanes, overlap
from runtime.bench.figures import Neighbours
from runtime.bench.kind import Figures, Kind
from runtime.cli.console import emit, progress
from runtime.cli.options import PROGRAM, Commands, add_command, add_output_options
from runtime.cli.report import number, to_json
from runtime.doctor import machine

KINDS: tuple[Kind, ...] = (host.KIND, lanes.KIND, overlap.KIND)

DESCRIPTION = """\
Measure the runtime on this machine: one kind of figures at a time, each with its own options.
Every report names the command, the machine, the versions, how often it ran, medians and
quartiles, and how busy other processes kept the machine meanwhile."""

EXAMPLES = """\
examples:
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
    kinds: Commands = parser.add_subparsers(metavar="KIND", required=True)
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


def run(kind: Kind, args: argparse.Namespace) -> int:
    """Measure one kind, print its report and return the exit code."""
    neighbours = Neighbours()
    figures = kind.measure(args, partial(progress, quiet=args.quiet))
    header = _header(kind, args, neighbours.cores())
    if args.json:
        record = {"kind": kind.name, **header, "figures": encode(figures)}
        emit(to_json(record | {"formulas": dict(kind.formulas)}))
    else:
        emit(as_text(kind, header, figures))
    return 0


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
