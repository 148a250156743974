"""Ctrl-C, closed pipes, full disks and narrow encodings, watched from outside the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATE = ["generate", "--bundle", "b", "--mode", "ar", "--prompt", "hi"]
DEADLINE_S = 60


def start(
    answer: str,
    arguments: list[str],
    *,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.cli.fake_llm", answer, *arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=stderr,
        # Unbuffered streams leave nothing for the flush at interpreter exit to stumble over.
        env={**os.environ, "PYTHONUNBUFFERED": "", **(environment or {})},
    )


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_ctrl_c_closes_the_model_then_says_so() -> None:
    with start("hang", GENERATE) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"first"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert out == b"\n"
    assert err == b"open ar\nclose ar\ninterrupted\n"


def test_a_reader_that_leaves_ends_the_stream_quietly() -> None:
    """``| head -1``: no traceback, not even from the flush at interpreter exit."""
    with start("endless", GENERATE) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"more"
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=DEADLINE_S)
    assert process.returncode == 141
    assert err == b"open ar\nclose ar\n"


@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["doctor", "--json"], GENERATE])
def test_a_pipe_closed_from_the_start_is_quiet(arguments: list[str]) -> None:
    writer = closed_pipe()
    with start("short", arguments, stdout=writer) as process:
        os.close(writer)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 141
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


def test_stderr_that_nobody_reads_does_not_stop_the_answer() -> None:
    writer = closed_pipe()
    with start("short", GENERATE, stderr=writer) as process:
        os.close(writer)
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"short\n")


def test_streams_that_the_shell_closed_are_no_traceback() -> None:
    script = f"{sys.executable} -m tests.runtime.cli.fake_llm short"
    prompt = " ".join(GENERATE)
    for redirection in (">&-", "2>&-"):
        command = ["sh", "-c", f"{script} {prompt} {redirection}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    command = ["sh", "-c", f"{script} generate --bundle b --prompt - <&-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: the prompt is empty")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_one_line() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with start("short", GENERATE, stdout=full) as process:
        os.close(full)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    last = err.decode().splitlines()[-1]
    assert last.startswith("error: cannot write to standard output: No space left")
    assert b"Traceback" not in err


def test_a_screen_without_emoji_shows_a_question_mark() -> None:
    with start("a😀b", GENERATE, environment={"PYTHONIOENCODING": "ascii"}) as process:
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, b"a?b\n")


IMPORTING = """
import runpy, signal, os, sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Slow())
sys.argv = ["x", "--help"]
runpy.run_module({package!r}, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("package", ["runtime", "export"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(package: str) -> None:
    script = IMPORTING.format(package=package, module=f"{package}.cli.entry")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_second_ctrl_c_does_not_wait_for_the_first() -> None:
    """Closing waits for the engine's call; an impatient user met a C++ abort."""
    script = """
import os, signal, time
import runtime.__main__ as program
def hang():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    finally:  # closing takes long
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
import runtime.cli.entry
runtime.cli.entry.main = hang
program.run()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (130, b"")
