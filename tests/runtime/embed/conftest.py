"""The library, compiled once a run of the tests, and programs that use it."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from runtime.embed.build import build
from tests.helpers.session_folder import built_once
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.embed.c_programs import Run, compiled


@pytest.fixture(scope="session")
def library() -> Path:
    """The folder that ``embed --out`` makes; nobody may change what is in it."""
    return built_once("embed-library", lambda folder: _build(folder / "ssd")) / "ssd"


@pytest.fixture(scope="session")
def bundle() -> Path:
    """A bundle of a tiny pair."""
    return tiny_bundle().path


@pytest.fixture(scope="session")
def process(library: Path) -> Path:
    """The program of process.c."""
    return compiled("process", library)


@pytest.fixture(scope="session")
def host(library: Path) -> Path:
    """The program of host.c, which is not linked with the library."""
    return compiled("host", library, is_linked=False)


@pytest.fixture
def run() -> Run:
    """Runs a program from a folder of its own, in an empty environment; its code has to be 0."""

    def run(
        program: Path, *arguments: object, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    return run


@pytest.fixture
def other_environment(tmp_path: Path) -> Callable[[Sequence[Path]], Path]:
    """Makes an environment of this Python that imports from given folders."""

    def make(places: Sequence[Path]) -> Path:
        prefix = tmp_path / "environment"
        packages = prefix / Path(sysconfig.get_path("purelib", vars={"base": "."}))
        (prefix / "bin").mkdir(parents=True)
        packages.mkdir(parents=True)
        base = Path(sysconfig.get_config_var("BINDIR"))
        (prefix / "pyvenv.cfg").write_text(f"home = {base}\n")
        (prefix / "bin" / "python3").symlink_to(base / "python3")
        (packages / "places.pth").write_text("".join(f"{each}\n" for each in places))
        return prefix

    return make


def _build(folder: Path) -> None:
    build(folder)
