"""A run of the tests leaves nothing in the temporary folder: bundles add up to gigabytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKERS = {"tests/helpers/session_folder.py", "tests/test_leftovers.py"}
BEGIN = """
import sys
from tests.helpers import session_folder

def make(folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("a plan")
    print("built", flush=True)

"""
SHARE = (
    BEGIN
    + """
print(session_folder.built_once("bundle", make) / "deep" / "file", flush=True)
sys.stdin.read()
"""
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of the processes of one run."""
    own = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTEST_XDIST_TESTRUNUID": "run"}
    return {**os.environ, **own}


def run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@contextmanager
def sharing(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process of the run that goes on until its stdin is closed, and what it said."""
    command = [sys.executable, "-c", SHARE]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().strip()]
        if said == ["built"]:
            said.append(process.stdout.readline().strip())
        try:
            yield process, said
        finally:
            process.kill()


def left(folder: Path) -> list[str]:
    [home] = folder.iterdir()
    return sorted(path.name for path in home.iterdir())


def test_what_is_built_goes_with_the_process(tmp_path: Path, environment: dict[str, str]) -> None:
    del environment["PYTEST_XDIST_TESTRUNUID"]
    code = """
make(session_folder.session_folder("bundle"))
session_folder.built_once("other", make)
"""
    assert run(code, environment) == "built\nbuilt\n"
    assert left(tmp_path) == [".lock"]


def test_processes_of_a_run_build_once_and_the_last_one_clears_away(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with sharing(environment) as (first, of_first), sharing(environment) as (second, of_second):
        assert of_first == ["built", *of_second]
        first.communicate()
        assert Path(of_second[0]).read_text() == "a plan"
        second.communicate()
    assert left(tmp_path) == [".lock"]


def test_who_comes_later_clears_away_behind_a_process_that_was_killed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with sharing(environment) as (process, _):
        process.kill()
        process.wait()
        assert left(tmp_path) == [".lock", "run"]
    assert run("session_folder.sweep()", {**environment, "PYTEST_XDIST_TESTRUNUID": "b"}) == ""
    assert left(tmp_path) == [".lock"]


def test_nobody_takes_away_what_another_run_uses(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with sharing(environment) as (_, said):
        run('session_folder.session_folder("a")', {**environment, "PYTEST_XDIST_TESTRUNUID": "b"})
        assert left(tmp_path) == [".lock", "run"]
        assert Path(said[-1]).exists()


def test_a_build_that_failed_is_done_again(tmp_path: Path, environment: dict[str, str]) -> None:
    code = """
def fail(folder):
    (folder / "half").touch()
    raise ValueError

try:
    session_folder.built_once("bundle", fail)
except ValueError:
    print(*(path.name for path in session_folder.built_once("bundle", make).iterdir()))
"""
    assert run(code, environment) == "built\ndeep\n"
    assert left(tmp_path) == [".lock"]


def test_no_test_makes_a_temporary_folder_that_nobody_removes() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "mkdtemp" in path.read_text(encoding="utf-8")
    }
    assert found == MAKERS
