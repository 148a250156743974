"""The host form of a kernel: compiled by g++, a thread for each thread of a block."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.cachedir import cache_dir
from engines.errors import BackendError, UsageError
from plugins import cxx
from plugins.cuda.args import Args
from plugins.store import KernelStore, key_of

# No contraction to fused multiply-add, here and on the device: both round as numpy does.
FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Werror"),
)
SANITIZE = ("-fsanitize=thread", "-O1", "-g")

_FAILURES = {
    1: "the threads of a block synchronised unequally often",
    2: "a block asks for more than 48 KiB of shared memory",
    3: "the entry does not take so many threads a block",
    4: "a 16-byte load or store at an address that is no multiple of 16",
}


class HostKernel:
    """A loaded source; its entries are launched by name."""

    def __init__(self, path: Path, args: Args) -> None:
        self.path = path
        self.args = args
        self._library = ctypes.CDLL(str(path))

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        num_concurrent: int = 1,
    ) -> None:
        """Run an entry to its end.

        Args:
            values: the fields of the kernel's struct; arrays are numpy arrays or addresses of host
                memory, written in place.
            num_blocks, num_threads: the grid; any number of threads up to the entry's limit. Blocks
                of one thread, one at a time, run in the caller's thread and start none.
            num_concurrent: blocks that run at the same time.

        Raises UsageError on values that do not fit the struct or an unknown entry, BackendError
        on a kernel that breaks the rules of `block.cuh`.
        """
        function = self._entry(entry)
        packed = self.args.pack(values)
        status = function(ctypes.byref(packed), num_blocks, num_threads, num_concurrent)
        if status:
            raise BackendError(f"{entry} failed on the host: {_FAILURES[status]}")

    def _entry(self, entry: str) -> Any:
        try:
            function, size_of = self._library[entry], self._library[f"{entry}_args_size"]
        except AttributeError:
            raise UsageError(f"{self.path.name} has no entry {entry}") from None
        if size_of() != ctypes.sizeof(self.args.struct):
            raise BackendError(
                f"the struct of {entry} has {size_of()} bytes, its declaration "
                f"{ctypes.sizeof(self.args.struct)}: their fields differ"
            )
        return function


def load(source: Path, args: Args, *, sanitize: bool = False) -> HostKernel:
    """Compile a kernel source for the host, or take it from the cache.

    Args:
        sanitize: with ThreadSanitizer. Such a library loads only into a process that was started
            with `sanitizer_runtime()` in LD_PRELOAD.

    Raises BackendError without g++, and where it refuses the source.
    """
    flags = (*FLAGS, *SANITIZE) if sanitize else FLAGS
    store = KernelStore(cache_dir() / "kernels" / "host")
    key = key_of(source, [cxx.compiler_version(), *flags])
    entry = store.get(key)
    if entry is None:
        note = {"source": source.name}
        entry = store.put(key, "so", cxx.compile_library(source, flags), note)
    return HostKernel(entry.path, args)


def sanitizer_runtime() -> Path | None:
    """ThreadSanitizer's library, or None where g++ has none."""
    named = cxx.run([cxx.required_compiler(), "-print-file-name=libtsan.so"]).stdout.strip()
    # g++ answers with the bare name where it has no such file.
    path = Path(named)
    return path.resolve() if path.is_absolute() and path.exists() else None
