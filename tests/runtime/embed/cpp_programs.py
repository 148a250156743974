"""Programs in C++ and the examples, compiled once a run of the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.session_folder import built_once

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "runtime" / "embed" / "examples"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Werror")
COUNTED = (
    *("ssd_model_open", "ssd_model_close", "ssd_request_destroy"),
    *("ssd_request_begin", "ssd_request_begin_tokens", "ssd_request_begin_chat"),
)
"""Functions that cpp/harness.cpp stands in front of."""


def command(*words: object) -> str:
    """Run a command that has to work, and return what it printed."""
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def linked(library: Path) -> list[str]:
    """What links a program with ``library``, a folder of ``embed --out``."""
    folder = library / "lib"
    return [f"-L{folder}", "-lssd_trt", f"-Wl,-rpath,{folder}", "-pthread"]


def cpp_program(library: Path, *sources: str, flags: Sequence[str] = ()) -> Path:
    """A program of files in cpp/, named as the first one, compiled without a warning."""

    def make(folder: Path) -> None:
        paths = [HERE / "cpp" / f"{source}.cpp" for source in sources]
        compiler = ["g++", "-std=c++17", *WARNINGS, f"-I{library / 'include'}"]
        command(*compiler, *paths, "-o", folder / sources[0], *flags, *linked(library))

    return built_once(f"embed-cpp-{sources[0]}", make) / sources[0]


def cases(library: Path) -> Path:
    wraps = [f"-Wl,--wrap={name}" for name in COUNTED]
    return cpp_program(library, "harness", "owning", "reading", flags=wraps)


def examples(library: Path) -> Path:
    """The folder with the examples' programs, made by the compilers alone."""

    def make(folder: Path) -> None:
        include = f"-I{library / 'include'}"
        for source in sorted((library / "share" / "ssd_trt" / "examples").glob("*.c*")):
            compiler = ["gcc", "-std=c99"] if source.suffix == ".c" else ["g++", "-std=c++17"]
            out = ["-o", folder / source.stem, *linked(library)]
            command(*compiler, *WARNINGS, include, source, *out)

    return built_once("embed-examples", make)
