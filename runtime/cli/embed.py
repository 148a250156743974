"""``python -m runtime embed``: what other programs need to run bundles inside of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from engines.errors import UsageError
from runtime.cli.console import busy, emit
from runtime.cli.options import Commands, add_command, add_output_options
from runtime.cli.report import to_json
from runtime.embed.triton.command import add_triton_options, refuse_triton_options, run_triton

DESCRIPTION = """\
--out DIR compiles the library that runs bundles inside of programs in C and C++, and lays out a
folder to build against: lib/libssd_trt.so, include/ssd.h and ssd.hpp, files for pkg-config and
CMake, examples. The library starts the Python of this environment, which has to stay where it is,
wherever it is loaded from; SSD_TRT_PYTHON, set where the program runs, names another one."""

EXAMPLES = """\
examples:
  python -m runtime embed --out build/ssd
  gcc -Ibuild/ssd/include program.c -Lbuild/ssd/lib -lssd_trt -Wl,-rpath,$PWD/build/ssd/lib
  gcc program.c $(PKG_CONFIG_PATH=build/ssd/lib/pkgconfig pkg-config --cflags --libs ssd_trt)
  cmake -DCMAKE_PREFIX_PATH=$PWD/build/ssd ...     # find_package(ssd_trt)

It needs a C compiler (CC names one), a Python with a shared library, and the extra embed. The
header says how to call it, and from which threads.
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands, "embed", "a library for C and C++, a model for Triton", DESCRIPTION, EXAMPLES
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder to make or to add to; files of the same names are replaced",
    )
    add_triton_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make what is asked for, and say where it is; returns the exit code."""
    if (args.out is None) == (args.triton is None):
        found = "neither" if args.out is None else "both"
        raise UsageError(f"embed takes --out DIR or --triton DIR, and got {found}")
    if args.triton is not None:
        return run_triton(args)
    refuse_triton_options(args)
    return _build(args)


def _build(args: argparse.Namespace) -> int:
    from runtime.embed.build import build

    with busy(f"building {args.out}", quiet=args.quiet) as announce:
        built = build(args.out, tell=announce)
    if args.json:
        record = {
            "out": str(built.out),
            "library": str(built.library),
            "version": built.version,
            "python": str(built.python),
        }
        emit(to_json(record))
    else:
        emit(f"{built.library}: ssd-trt {built.version} for {built.python}\n")
    return 0
