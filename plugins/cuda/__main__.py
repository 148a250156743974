"""``python -m plugins.cuda``: compile all kernels and print what they cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from engines.errors import SsdError, UsageError, as_line
from plugins.cuda import registry
from plugins.cuda.compiler import CAPABILITIES, NVCC, NVRTC, KernelImage, compile_kernel
from plugins.cuda.kernel import Kernel
from plugins.cuda.report import Line, as_table

DESCRIPTION = """\
Compile the CUDA kernels, no GPU needed, and print for each typical use the bytes it must move, how
long that takes at 4.8 TB/s, and what the compiler made of it: registers and spilled bytes a thread,
shared memory a block."""

EXAMPLES = """\
exit code: 0; 2 for an error, one line on stderr

examples:
  python -m plugins.cuda
  python -m plugins.cuda verify sample --arch 8.9 9.0 --json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 with one line on stderr."""
    options = _parser().parse_args(argv)
    try:
        lines = [
            line
            for kernel in map(registry.kernel, options.kernels or registry.NAMES)
            for capability in options.arch
            for line in table_lines(
                kernel, compile_kernel(kernel, capability, compiler=options.compiler)
            )
        ]
    except SsdError as error:
        sys.stderr.write(f"error: {as_line(str(error))}\n")
        return 2
    text = json.dumps([asdict(line) for line in lines], indent=2) if options.json else None
    sys.stdout.write(f"{text or as_table(lines)}\n")
    return 0


def table_lines(kernel: Kernel, image: KernelImage) -> list[Line]:
    """One line for each trial of a kernel; raises UsageError for a trial of an unknown entry."""
    reports = {each.name: each for each in image.entries}
    launched = {entry for trial in kernel.trials for entry in trial.entries}
    if unknown := sorted(launched - set(reports)):
        raise UsageError(f"{kernel.name} has trials of {', '.join(unknown)}, not in its source")
    return [
        Line(
            kernel=kernel.name,
            capability=image.capability,
            entries=trial.entries,
            label=trial.label,
            num_bytes=trial.num_bytes,
            floor_s=trial.floor_s,
            registers=max(reports[entry].registers for entry in trial.entries),
            spill_bytes=max(reports[entry].spill_bytes for entry in trial.entries),
            shared_bytes=max(reports[entry].shared_bytes for entry in trial.entries),
        )
        for trial in kernel.trials
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plugins.cuda",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(registry.NAMES)} (all)"
    )
    parser.add_argument(
        "--arch",
        nargs="+",
        default=["9.0"],
        metavar="X.Y",
        help=f"compute capabilities, such as {' '.join(CAPABILITIES)} (default: 9.0)",
    )
    parser.add_argument(
        "--compiler",
        choices=(NVRTC, NVCC),
        default=NVRTC,
        help="the library that comes with ssd-trt[cuda], or the toolkit's own command "
        "(default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON, times in seconds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
