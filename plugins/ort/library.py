"""The compiled library of ONNX Runtime operators: found, or compiled once a machine.

It is looked for beside this file, where an image may bring it, then in the user's cache. What it is
compiled from is its name there, so a library of other sources is never taken. All of this is a
matter of speed: where there is none, ONNX Runtime's own kernels run.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from engines.cachedir import cache_dir
from engines.errors import BackendError, SsdError, UsageError
from plugins import cxx
from plugins.store import Entry, KernelStore, key_of

SWITCH = "SSD_TRT_CPU_KERNELS"
"""The environment variable: ``off`` leaves everything to ONNX Runtime; unset is ``on``."""
SOURCE = Path(__file__).with_name("library.cc")
PACKAGED = Path(__file__).with_name("built")
INSTRUCTIONS = ("avx512f", "avx512_vnni")
"""What the kernels are written for, as Linux names it."""
CPUINFO = Path("/proc/cpuinfo")
FLAGS = (
    *("-std=c++20", "-O3", "-mavx512f", "-mavx512vnni", "-ffp-contract=off"),
    *("-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
)


@dataclass(frozen=True, slots=True)
class Library:
    """``path`` is None where there is none; ``reason`` then says why, in half a sentence.

    ``identity`` names the kernels that run: equal ones round alike on one kind of processor.
    """

    path: Path | None
    reason: str = ""
    identity: str = "ONNX Runtime's kernels"


_refusals: dict[str, str] = {}
"""What the compiler or the cache said, by key: asked once a process."""


def find(*, may_compile: bool = True, cpuinfo: Path | None = None) -> Library:
    """The library for this processor. Raises UsageError for a switch that is neither on nor off.

    ``may_compile``: take the second that the compiler needs where nothing is kept yet. ``cpuinfo``:
    what the system says of the processor, for tests.
    """
    reason = _why_not(cpuinfo or CPUINFO)
    if reason:
        return Library(None, reason)
    key = key_of(SOURCE, FLAGS)
    entry = _kept(key)
    if entry is None and not may_compile:
        if cxx.compiler() is None:
            return Library(None, cxx.NO_COMPILER)
        return Library(None, "they are compiled when an engine is first loaded")
    if entry is None and key not in _refusals:
        try:
            entry = _put(_in_cache(), key)
        except SsdError as error:
            _refusals[key] = str(error)
    if entry is None:
        return Library(None, _refusals[key])
    return Library(entry.path, identity=f"ssd kernels {key[:8]}")


def package() -> Library:
    """Compile the library into the package itself, for images: their users may have no compiler.

    Raises BackendError without a compiler, UsageError where the package cannot be written. The
    processor that compiles may be another kind than the one that runs.
    """
    key = key_of(SOURCE, FLAGS)
    store = KernelStore(PACKAGED)
    entry = store.get(key) or _put(store, key)
    return Library(entry.path, identity=f"ssd kernels {key[:8]}")


def _why_not(cpuinfo: Path) -> str:
    setting = os.environ.get(SWITCH, "") or "on"
    if setting == "off":
        return f"{SWITCH} is off"
    if setting != "on":
        raise UsageError(f"{SWITCH} is {setting!r}, it must be on or off")
    if platform.system() != "Linux":
        return f"they are compiled on Linux, and this is {platform.system()}"
    instructions = _instructions(cpuinfo)
    missing = [name for name in INSTRUCTIONS if name not in instructions]
    return f"this processor has no {' and no '.join(missing)}" if missing else ""


def _instructions(cpuinfo: Path) -> frozenset[str]:
    """All that the processor has; empty where the system does not say."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def _kept(key: str) -> Entry | None:
    found = KernelStore(PACKAGED).get(key)
    if found is None:
        try:
            found = _in_cache().get(key)
        except UsageError:  # a user without a home
            return None
    return found


def _in_cache() -> KernelStore:
    return KernelStore(cache_dir() / "kernels" / "ort")


def _put(store: KernelStore, key: str) -> Entry:
    try:
        library = cxx.compile_library(SOURCE, FLAGS)
    except OSError as error:
        raise BackendError(f"{cxx.COMPILER} cannot be run: {error}") from None
    return store.put(key, "so", library, {"source": SOURCE.name})
