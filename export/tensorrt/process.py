"""Compile in a process of its own.

A compiler takes several times an engine's size in memory, listens to nobody for most of the time,
and may end its process. In a child all of that is harmless: it is killed when the build is
interrupted, its memory is freed at once, and its end becomes one line.

The child reads a ``CompileRequest`` from stdin, writes the plan to a file and tells its progress on
stdout, one JSON object a line. Its stdin ends when its parent does, by whatever signal, and then it
ends too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engines.codec import decode, encode
from engines.errors import BackendError, SsdError, UnsupportedModelError, UsageError
from engines.profiles import ShapeProfile
from export.tensorrt import vendor
from export.tensorrt.compile import compile_engine
from export.tensorrt.progress import Progress
from plugins import tensorrt as plugins

_ROOT = Path(__file__).resolve().parents[2]
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What ``compile_engine`` is to be called with; the plan goes to ``plan_path``."""

    vendor: str
    onnx_path: str
    plan_path: str
    profiles: tuple[ShapeProfile, ...]
    capabilities: tuple[str, ...]
    precision: str
    plugins: tuple[str, ...]
    timing_cache: str | None


def compile_in_process(request: CompileRequest, progress: Progress) -> None:
    """Write the plan. Raises what ``compile_engine`` raises, and OSError for the plan's file.

    Whatever ends this call early, a ctrl-C for one, ends the child too. The file may then exist.
    """
    with _started() as (child, noise):
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            _send(child.stdin, request)
            is_done = _follow(child.stdout, progress)
            code = child.wait()
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        if not is_done:
            raise BackendError(f"{request.vendor} {_ending(code)}{_last_line(noise)}")


@contextmanager
def _started() -> Iterator[tuple[subprocess.Popen[str], IO[bytes]]]:
    """The child, and the file that its stderr goes to."""
    try:
        noise = tempfile.TemporaryFile()  # noqa: SIM115  (closed below)
    except OSError as error:
        raise _not_started(error) from None
    with noise:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _program()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=noise,
                text=True,
            )
        except OSError as error:
            raise _not_started(error) from None
        yield child, noise


def _not_started(error: OSError) -> BackendError:
    where = f" ({error.filename})" if error.filename else ""
    return BackendError(f"could not start the compiler: {error.strerror or error}{where}")


def _program() -> str:
    """Serves a request, with modules from where this process has them and in the same order.

    Not by $PYTHONPATH, which cannot name a folder with a colon in it.
    """
    folders = ascii(_module_path())
    return f"import sys; sys.path[:] = {folders}; from {__name__} import main; main()"


def _module_path() -> list[str]:
    """Where this process finds modules, without the working folder.

    In this process's order, since an installed package of ours lies among others that must not
    come before Python's own.
    """
    folders = [folder for folder in sys.path if folder]
    return folders if str(_ROOT) in folders else [str(_ROOT), *folders]


def _send(stdin: IO[str], request: CompileRequest) -> None:
    """Leaves ``stdin`` open: its end is the sign that this process is gone."""
    try:
        stdin.write(json.dumps(encode(request)) + "\n")
        stdin.flush()
    except BrokenPipeError:
        pass  # the child has ended; its exit code tells


def _follow(stdout: IO[str], progress: Progress) -> bool:
    """Hand on what the child tells; whether it said that it is done."""
    for line in stdout:
        if not line.endswith("\n"):
            return False  # it was ended in the middle of a word
        told = json.loads(line)
        if "step" in told:
            progress(*told["step"])
        elif "error" in told:
            raise _error(**told["error"])
        else:
            return True
    return False


def _error(kind: str, message: str, code: int | None, filename: str | None) -> Exception:
    if code is not None:
        return OSError(code, os.strerror(code), filename)
    raised = {error.__name__: error for error in (UnsupportedModelError, UsageError)}
    return raised.get(kind, BackendError)(message)


def _ending(code: int) -> str:
    if code >= 0:
        return f"stopped with exit code {code} while compiling"
    known = {number.value: number.name for number in signal.Signals}
    name = known.get(-code, f"signal {-code}")
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {name} while compiling{hint}"


def _last_line(noise: IO[bytes]) -> str:
    noise.seek(0)
    lines = noise.read().decode(errors="replace").split("\n")
    said = [" ".join(line.split()) for line in lines if line.strip()]
    return f": {said[-1]}" if said else ""


# In the child. ---------------------------------------------------------------------------------


def main() -> None:
    """Serve one request. What a terminal sends is for the parent, which kills this process."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The libraries' own prints must not mix with what we tell the parent.
    with os.fdopen(os.dup(_STDOUT), "w") as stdout:
        os.dup2(_STDERR, _STDOUT)

        def tell(**facts: object) -> None:
            stdout.write(json.dumps(facts) + "\n")
            stdout.flush()

        try:
            request = decode(CompileRequest, json.loads(sys.stdin.readline()))
            threading.Thread(target=_end_with_parent, daemon=True).start()
            _serve(request, lambda what, done, total: tell(step=(what, done, total)))
        except BrokenPipeError:
            return  # nobody is waiting any more
        except OSError as error:
            if error.errno is None:
                raise
            code, name = error.errno, error.filename
            tell(error={"kind": "", "message": "", "code": code, "filename": name})
        except SsdError as error:
            kind = type(error).__name__
            tell(error={"kind": kind, "message": str(error), "code": None, "filename": None})
        else:
            tell(done=True)


def _end_with_parent() -> None:
    # Not through sys.stdin, whose lock this thread would still hold at the interpreter's end.
    while os.read(_STDIN, 1):
        pass
    os._exit(1)


def _serve(request: CompileRequest, progress: Progress) -> None:
    chosen = vendor.load(request.vendor)
    plugins.register(chosen.module)
    plan = compile_engine(
        chosen,
        Path(request.onnx_path),
        profiles=request.profiles,
        capabilities=request.capabilities,
        precision=request.precision,
        progress=progress,
        expected_plugins=request.plugins,
        timing_cache=None if request.timing_cache is None else Path(request.timing_cache),
    )
    Path(request.plan_path).write_bytes(plan)
