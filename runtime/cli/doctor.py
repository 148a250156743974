"""``python -m runtime doctor``: what this machine can build and run, and why not."""

from __future__ import annotations

import argparse

from engines.codec import encode
from runtime.cli.console import emit
from runtime.cli.options import Commands, add_command
from runtime.cli.report import table, to_json
from runtime.doctor import Backend, Checkup, Memory, Nvidia, examine

DESCRIPTION = """\
Show cores, memory, GPUs and packages, and which backend can build and run bundles here.
Nothing is loaded or changed."""

EXAMPLES = """\
examples:
  python -m runtime doctor
  python -m runtime doctor --json
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "doctor",
        "show what this machine can build and run, and why not",
        DESCRIPTION,
        EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    checkup = examine()
    emit(to_json(encode(checkup)) if args.json else as_text(checkup))
    return 0


def as_text(checkup: Checkup) -> str:
    """The findings for people."""
    packages = [
        [package.name, package.version or "-", package.extra or "-", package.problem or "ok"]
        for package in checkup.packages
    ]
    backends = [
        [backend.name, _yes_no(backend.can_build), _yes_no(backend.can_run)]
        for backend in checkup.backends
    ]
    lines = [
        f"python       {checkup.python} on {checkup.system}",
        f"cpu          {checkup.machine}",
        f"             has {_names(checkup.flags.present)}; lacks {_names(checkup.flags.absent)}",
        f"memory       {_memory(checkup.memory)}",
        *_nvidia(checkup.nvidia),
        "",
        table(("package", "version", "extra", "state"), packages, figures=False),
        table(("backend", "can build", "can run"), backends, figures=False),
        *(line for backend in checkup.backends for line in _reasons(backend)),
        *checkup.advice,
    ]
    return "\n".join(lines) + "\n"


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _names(names: tuple[str, ...]) -> str:
    return " ".join(names) or "none of the instruction sets that matter"


def _memory(memory: Memory) -> str:
    parts = [f"{_gib(memory.total)} in all, {_gib(memory.available)} available"]
    if memory.limit is not None:
        parts.append(f"the container may use {_gib(memory.limit)}")
    return "; ".join(parts)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _nvidia(nvidia: Nvidia) -> list[str]:
    if nvidia.driver is None and not nvidia.gpus:
        return ["nvidia       no driver"]
    lines = [f"nvidia       driver {nvidia.driver or 'of unknown version'}"]
    lines += [
        f"             {gpu.name}, bus {gpu.bus}, "
        + (gpu.node or "no device node: not visible in this container")
        for gpu in nvidia.gpus
    ]
    return [*lines, f"peer access  {nvidia.peer_access}"]


def _reasons(backend: Backend) -> list[str]:
    return [
        *(f"{backend.name}: {reason}" for reason in backend.why_not),
        *(f"{backend.name}: install with {command}" for command in backend.install),
    ]
