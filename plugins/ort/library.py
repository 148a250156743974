"""The compiled library of ONNX Runtime operators: found, or compiled once a machine.

It is looked for beside this file, where an image may bring it, then in the user's cache. What it is
compiled from is its name there, so a library of other sources is never taken. All of this is a
matter of speed: where there is none, for whatever reason, ONNX Runtime's own kernels run.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from engines.cachedir import cache_dir
from engines.errors import SsdError, UsageError
from plugins import cxx
from plugins.store import REMEDY, Entry, KernelStore, key_of

SWITCH = "SSD_TRT_CPU_KERNELS"
"""The environment variable: ``off`` leaves everything to ONNX Runtime; unset is ``on``."""
TO_COME = "ours are compiled when an engine is first loaded, or by python -m plugins.ort"
ENTRY = "RegisterCustomOps"
SOURCE = Path(__file__).with_name("library.cc")
PACKAGED = Path(__file__).with_name("built")
BUILT_ON = "Linux on x86_64"
INSTRUCTIONS = ("avx512f", "avx512_vnni")
"""What the kernels are written for, as Linux names it."""
MOST_S = 60.0
"""Seconds for the compiler, which needs two: an engine that is loaded waits for it."""
CPUINFO = Path("/proc/cpuinfo")
FLAGS = (
    *("-std=c++20", "-O3", "-mavx512f", "-mavx512vnni", "-ffp-contract=off"),
    *("-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
)


@dataclass(frozen=True, slots=True)
class Library:
    """``path`` is None where there is none; ``reason`` then says why, in half a sentence.

    ``identity`` names the kernels that run: equal ones round alike on one kind of processor.
    ``is_missed``: this processor could have run it, so somebody may want to know.
    """

    path: Path | None
    reason: str = ""
    identity: str = "ONNX Runtime's own"
    is_missed: bool = False


_found: dict[tuple[str, ...], Library] = {}
"""What was found under which circumstances: for good, so that all engines of a process compute
alike, whatever other processes do to the cache meanwhile."""


def find(*, may_compile: bool = True, cpuinfo: Path | None = None) -> Library:
    """The library for this processor. Raises UsageError for a switch that is neither on nor off.

    ``may_compile``: take the two seconds that the compiler needs where nothing is kept yet. Without
    it nothing is decided, and what would be is said. ``cpuinfo``: what the system says of the
    processor, for tests.
    """
    reason = _why_not_here(cpuinfo or CPUINFO)
    if reason:
        return Library(None, reason)
    try:
        key = key_of(SOURCE, FLAGS)
    except (OSError, UsageError) as error:
        return _missed(f"their sources cannot be read ({error})")
    try:
        store = KernelStore(cache_dir() / "kernels" / "ort")
    except UsageError as error:  # a user without a home
        return _kept(KernelStore(PACKAGED), key) or _missed(str(error))
    circumstances = (key, str(PACKAGED), str(store.folder))
    found = _found.get(circumstances) or _kept(KernelStore(PACKAGED), key) or _kept(store, key)
    if not may_compile:
        reason = store.why_not_writable() or (cxx.NO_COMPILER if cxx.compiler() is None else "")
        return found or _missed(reason or TO_COME)
    _found[circumstances] = found = found or _compiled(store, key)
    return found


def forget() -> None:
    """Look again: what was found is gone."""
    _found.clear()


def package() -> Library:
    """Compile the library into the package itself, for images: their users may have no compiler.

    There is none for another architecture than x86-64, and no error. Raises BackendError without a
    compiler, UsageError where the package cannot be written or the switch is neither on nor off
    (off is for who runs it). The processor that compiles may be older than the one that runs.
    """
    _is_off()
    reason = _why_not_built()
    if reason:
        return Library(None, reason)
    key = key_of(SOURCE, FLAGS)
    store = KernelStore(PACKAGED, remedy="run this as who installed the package")
    return _kept(store, key) or _put(store, key)


def _is_off() -> bool:
    setting = os.environ.get(SWITCH, "")
    if setting.lower() not in ("", "on", "off"):
        raise UsageError(f"{SWITCH} is {setting!r}, it must be on or off")
    return setting.lower() == "off"


def _why_not_here(cpuinfo: Path) -> str:
    if _is_off():
        return f"{SWITCH} is off"
    reason = _why_not_built()
    if reason:
        return reason
    instructions = _instructions(cpuinfo)
    missing = [name for name in INSTRUCTIONS if name not in instructions]
    return f"this processor has no {' and no '.join(missing)}" if missing else ""


def _why_not_built() -> str:
    here = f"{platform.system()} on {platform.machine()}"
    return "" if here == BUILT_ON else f"they are written for {BUILT_ON}, and this is {here}"


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


def _kept(store: KernelStore, key: str) -> Library | None:
    entry = store.get(key)
    if entry is None:
        return None
    reason = cxx.why_not_loadable(entry.path, ENTRY)
    if reason:  # on a disk that nothing may be run from, another one would not be either
        return _missed(f"{entry.path} cannot be loaded ({reason}); remove it, or {REMEDY}")
    return _library(entry)


def _compiled(store: KernelStore, key: str) -> Library:
    """The library, or why there is none. Nothing is compiled that could not be kept."""
    try:
        reason = store.why_not_writable()
        return _missed(reason) if reason else _put(store, key)
    except SsdError as error:
        return _missed(str(error))


def _put(store: KernelStore, key: str) -> Library:
    library = cxx.compile_library(SOURCE, FLAGS, entry=ENTRY, most_s=MOST_S)
    return _library(store.put(key, "so", library, {"source": SOURCE.name}))


def _missed(reason: str) -> Library:
    return Library(None, reason, is_missed=True)


def _library(entry: Entry) -> Library:
    """Another compiler may make other code of the same source, so it is known by what it is."""
    return Library(entry.path, identity=f"ssd {entry.note['sha256'][:8]}")
