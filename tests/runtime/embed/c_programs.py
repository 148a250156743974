"""Programs in C, compiled once a run of the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.helpers.session_folder import built_once

HERE = Path(__file__).parent
C_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread", "-g")

Run = Callable[..., subprocess.CompletedProcess[str]]
"""What the fixture ``run`` is."""


def compiled(
    name: str, library: Path, flags: Sequence[str] = (), *, is_linked: bool = True
) -> Path:
    """One of this folder's programs in C, compiled without a warning."""
    linked = ("-L", str(library / "lib"), "-lssd_trt", f"-Wl,-rpath,{library / 'lib'}")

    def make(folder: Path) -> None:
        command = [
            *("gcc", *C_FLAGS, *flags, f"-I{library / 'include'}", str(HERE / f"{name}.c")),
            *("-o", str(folder / name), *(linked if is_linked else ()), "-ldl"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    return built_once("-".join(("embed", name, *map(str.strip, flags))), make) / name
