"""``python -m runtime bench``: figures with the command, the machine and the versions.

What is measured is named by a KIND with options of its own, or by an option of ``bench`` itself.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shlex
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from engines.codec import encode
from engines.errors import UsageError
from plugins.ort import library
from runtime.bench import host, lanes, outcomes, overlap
from runtime.bench.dataset import kind as dataset
from runtime.bench.figures import Neighbours
from runtime.bench.kind import (
    Compared,
    CutShort,
    Explained,
    Failable,
    Figures,
    Interruptible,
    Kind,
    Pictured,
    Recorded,
)
from runtime.bench.own_options import STDOUT, add_own_options, own_arguments, refuse_own, task_of
from runtime.bench.replay import kind as replay
from runtime.bench.replay.shipped import shipped
from runtime.bench.serving import kind as serving
from runtime.cli.console import emit, progress, say
from runtime.cli.options import PROGRAM, Commands, add_command, add_output_options
from runtime.cli.report import number, to_json
from runtime.doctor import machine
from runtime.trace.chrome import require_writable, write_whole

KINDS: tuple[Kind, ...] = (host.KIND, lanes.KIND, overlap.KIND, serving.KIND)
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
  python -m runtime bench --bundle engines/bundles/demo --dataset spec_bench.jsonl \\
      --modes ar,sd,ssd,auto --repeats 3 --peers llama.cpp,transformers \\
      --json figures.json --html report.html
  python -m runtime bench host
  python -m runtime bench lanes --bundle engines/bundles/demo
  python -m runtime bench overlap --bundle engines/bundles/demo --json
  python -m runtime bench serving --bundle engines/bundles/demo --concurrency 1,4

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
    html: Path | None = getattr(args, "html", None)
    json_path = _json_path(args)
    inputs: list[Path | None] = [getattr(args, name, None) for name in ("dataset", "prompts")]
    _check_outputs(json_path, html, inputs)
    neighbours = Neighbours()
    figures = kind.measure(args, partial(progress, quiet=args.quiet))
    header = _header(kind, args, neighbours.cores())
    formulas = _formulas(kind, figures)
    record = {"kind": kind.name, **header, "figures": _as_record(figures), "formulas": formulas}
    json_text = to_json(record)
    with ExitStack() as outputs:  # a closed pipe or a full disk keeps none of the others
        if args.json and json_path is None:
            outputs.callback(emit, json_text)
        else:
            outputs.callback(emit, as_text(kind, header, figures))
        if json_path is not None:
            # Half a character, of a file name that is not UTF-8, becomes JSON's escape of it.
            whole = json_text.encode("utf-8", "backslashreplace").decode("utf-8")
            outputs.callback(write_whole, json_path, whole, "the JSON", "--json")
        if html is not None and isinstance(figures, Pictured):
            page = figures.as_html(_header_lines(header), formulas)
            outputs.callback(write_whole, html, page, "the page", "--html")
    if isinstance(figures, Failable) and figures.failure is not None:
        say(f"error: {figures.failure}; what was measured until then is reported")
        return 2
    if isinstance(figures, Interruptible) and figures.is_interrupted:
        say("interrupted; what was measured until then is reported")
        return 130
    if isinstance(figures, CutShort) and figures.cut_short is not None:
        line, code = figures.cut_short
        say(line)
        return code
    return int(isinstance(figures, Compared) and not figures.is_identical)


def _json_path(args: argparse.Namespace) -> Path | None:
    """Of a KIND, ``--json`` is a switch."""
    return Path(args.json) if isinstance(args.json, str) and args.json != STDOUT else None


def _check_outputs(json_path: Path | None, html: Path | None, inputs: list[Path | None]) -> None:
    """Raise UsageError for what could not be written, or would replace what is read, before
    anything is measured."""
    taken = {os.path.realpath(path) for path in inputs if path is not None}
    for path, what, option in ((json_path, "the JSON", "--json"), (html, "the page", "--html")):
        if path is None:
            continue
        require_writable(path, what, option)
        if os.path.realpath(path) in taken:
            raise UsageError(f"{option} {path} would replace what is read; name another file")


def as_text(kind: Kind, header: dict[str, object], figures: Figures) -> str:
    """The report for people."""
    found = _header_lines(header)
    lines = [
        f"$ {found.pop('command')}",
        *(f"{name}: {what}" for name, what in found.items()),
        "",
        figures.as_text().rstrip("\n"),
        "",
        *(f"{name} = {formula}" for name, formula in _formulas(kind, figures).items()),
    ]
    return "\n".join(lines) + "\n"


def _header_lines(header: dict[str, object]) -> dict[str, str]:
    versions, others = header["versions"], header["other_cores"]
    assert isinstance(versions, dict)
    assert others is None or isinstance(others, float)
    return {
        "command": str(header["command"]),
        "machine": f"{machine()}; other processes used {number(others, 2)} cores meanwhile",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _as_record(figures: Figures) -> object:
    return figures.as_record() if isinstance(figures, Recorded) else encode(figures)


def _formulas(kind: Kind, figures: Figures) -> dict[str, str]:
    if not isinstance(figures, Explained):
        return dict(kind.formulas)
    return {name: text for name, text in kind.formulas.items() if name in figures.explains}


def _header(kind: Kind, args: argparse.Namespace, others: float | None) -> dict[str, object]:
    return {
        "command": shlex.join([*PROGRAM.split(), *args.command_line]),
        "machine": encode(machine()),
        "other_cores": others,
        "versions": {"python": platform.python_version()} | _versions(kind.packages),
    }


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of packages, and the CPU kernels that run beside ONNX Runtime's."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    if "onnxruntime" in packages:
        found["cpu-kernels"] = library.find().identity
    return found
