"""``python -m runtime doctor``: what this machine can build and run, and why not."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engines.bundle import open_bundle
from engines.codec import encode
from engines.errors import UsageError
from runtime.cli.console import emit
from runtime.cli.options import Commands, add_command, add_device, whole
from runtime.cli.report import table, to_json
from runtime.devices import CPU
from runtime.doctor import Backend, Checkup, CpuKernels, Memory, Nvidia, examine
from runtime.doctor.bundle import BundleCheckup, examine_bundle

DESCRIPTION = """\
Show cores, memory, GPUs and packages, and which backend can build and run bundles here; with
--bundle also what that bundle would take of each device's memory. Nothing is loaded or changed."""

EXAMPLES = """\
exit code: 0; 1 where the bundle of --bundle cannot run on its --device here; 2 for an error

examples:
  python -m runtime doctor
  python -m runtime doctor --json
  python -m runtime doctor --bundle engines/bundles/demo --device cuda:0,cuda:1
"""

NOT_INSTALLED = ": not installed"


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "doctor",
        "show what this machine can build and run, and why not",
        DESCRIPTION,
        EXAMPLES,
    )
    group = parser.add_argument_group("one bundle")
    group.add_argument(
        "--bundle", type=Path, metavar="DIR", help="plan the memory of this bundle, too"
    )
    add_device(group)
    group.add_argument(
        "--batch",
        type=whole(1),
        metavar="N",
        help="prompts decoded at once (default: what the bundle was built for)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 1 where the bundle cannot run here."""
    if args.bundle is None and (args.device is not None or args.batch is not None):
        raise UsageError("--device and --batch are for the bundle of --bundle; name one")
    checkup = examine()
    found = None if args.bundle is None else _examine_bundle(args, checkup)
    if args.json:
        record = encode(checkup)
        assert isinstance(record, dict)
        emit(to_json(record | ({} if found is None else {"bundle": as_record(found)})))
    else:
        emit(as_text(checkup) + ("" if found is None else f"\n{bundle_as_text(found)}"))
    return int(found is not None and bool(found.problems))


def _examine_bundle(args: argparse.Namespace, checkup: Checkup) -> BundleCheckup:
    # Imported late: without a bundle the command needs numpy alone.
    from runtime.loading.hardware import INSTALLED
    from runtime.settings import devices_for

    bundle = open_bundle(args.bundle)
    return examine_bundle(
        bundle,
        devices_for(bundle, args.device),
        num_slots=args.batch or bundle.manifest.limits.max_batch,
        free_memory=partial(_free, checkup, INSTALLED.free_memory),
    )


def _free(checkup: Checkup, of_gpu: Callable[[str], int | None], device: str) -> int | None:
    return checkup.memory.available if device == str(CPU) else of_gpu(device)


def as_record(found: BundleCheckup) -> dict[str, object]:
    """For JSON."""
    return {
        "path": found.path,
        "backend": found.backend,
        "device": str(found.devices),
        "can_run": not found.problems,
        "problems": list(found.problems),
        "memory": found.plan.as_record(found.free.__getitem__),
    }


def bundle_as_text(found: BundleCheckup) -> str:
    """For people."""
    lines = [
        f"bundle {found.path}, built for {found.backend}, on {found.devices}",
        found.plan.as_text(found.free.__getitem__),
        *(f"cannot run here: {problem}" for problem in found.problems),
    ]
    return "\n".join(lines) + "\n"


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
        f"kernels      {_kernels(checkup.kernels)}",
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


def _kernels(kernels: CpuKernels) -> str:
    return f"{kernels.name} for 8-bit products and attention ({kernels.reason or kernels.library})"


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
    """What keeps it from building and from running, on a line each; with what helps."""
    to_build = _reason(backend.why_not_build, backend.install_to_build)
    to_run = _reason(backend.why_not_run, backend.install_to_run)
    if to_build and to_build == to_run:
        return [f"{backend.name} cannot build or run: {to_build}"]
    return [
        f"{backend.name} cannot {verb}: {why}"
        for verb, why in (("build", to_build), ("run", to_run))
        if why
    ]


def _reason(why_not: tuple[str, ...], install: tuple[str, ...]) -> str:
    others = [reason for reason in why_not if not reason.endswith(NOT_INSTALLED)]
    missing = [each.removesuffix(NOT_INSTALLED) for each in why_not if each not in others]
    command = ", ".join(install)
    if missing:
        return "; ".join([f"not installed: {', '.join(missing)} ({command})", *others])
    return "; ".join([*others, *install])
