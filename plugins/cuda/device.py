"""Compiled kernels on a GPU: loaded into the current context, launched on a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from engines.errors import DeviceError, MissingDependencyError, UsageError
from plugins.cuda.args import Args
from plugins.cuda.compiler import KernelImage

_MOST_KEPT = 1024


class DeviceKernel:
    """The entries of one image, for the streams of one GPU, a share of its multiprocessors too.

    `launch` may be captured into a graph: it allocates nothing and waits for nothing, and the
    struct is copied into the launch. Threads may launch side by side.
    """

    def __init__(self, image: KernelImage, args: Args, driver: Any = None) -> None:
        """Load an image into the CUDA context that is current.

        Args:
            driver: the module `cuda.bindings.driver`, or one like it.

        Raises MissingDependencyError without cuda.bindings, DeviceError where the driver refuses.
        """
        self.image = image
        self.args = args
        self._key_of = itemgetter(*args.names)
        self._kept: dict[Any, ctypes.Structure] = {}
        self._driver = driver or _driver_module()
        (library,) = self._call("cuLibraryLoadData", image.cubin, None, None, 0, None, None, 0)
        self._functions = {each.name: self._load(library, each.name) for each in image.entries}

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        stream: int,
    ) -> None:
        """Queue an entry and return.

        Args:
            values: the fields of the kernel's struct; arrays are device addresses, but for those
                by value.
            num_threads: a multiple of 32, at most what the entry was compiled for.
            stream: a cudaStream_t, perhaps in capture.

        Raises UsageError on values or a grid that cannot be, DeviceError where the driver refuses.
        """
        if entry not in self._functions:
            raise UsageError(f"{self.image.name} has no entry {entry}")
        if num_threads % 32 or num_threads < 32:
            raise UsageError(f"a block has a multiple of 32 threads, found {num_threads}")
        packed = self._packed(values)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
        self._call(
            "cuLaunchKernel",
            self._functions[entry],
            *(num_blocks, 1, 1),
            *(num_threads, 1, 1),
            0,
            self._driver.CUstream(stream),
            ctypes.addressof(parameters),
            0,
        )

    def _packed(self, values: Mapping[str, Any]) -> ctypes.Structure:
        """The struct; that of the same numbers and addresses as before is kept, since a round
        launches what the round before did."""
        if self.args.by_value or len(values) != len(self.args.names):
            return self._pack(values)
        try:
            key = self._key_of(values)
            found = self._kept.get(key)
        except (KeyError, TypeError):  # a field too few, or an array
            return self._pack(values)
        if found is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            found = self._kept[key] = self._pack(values)
        return found

    def _pack(self, values: Mapping[str, Any]) -> ctypes.Structure:
        in_host_memory = [
            name
            for name, value in values.items()
            if isinstance(value, np.ndarray) and name not in self.args.by_value
        ]
        if in_host_memory:
            raise UsageError(f"a GPU needs device addresses of {', '.join(in_host_memory)}")
        return self.args.pack(values)

    def _load(self, library: Any, entry: str) -> Any:
        (kernel,) = self._call("cuLibraryGetKernel", library, entry.encode())
        # The driver would load it at its first launch, which must not happen in a capture.
        self._call("cuKernelGetFunction", kernel)
        # A kernel, unlike a module's function, belongs to no context: streams of a green context
        # take it too.
        return self._driver.CUfunction(int(kernel))

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        status, *results = getattr(self._driver, name)(*arguments)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"{name} of {self.image.name} failed: {status.name}")
        return tuple(results)


def _driver_module() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError:
        raise MissingDependencyError("cuda-core", "cuda", "running a kernel on a GPU") from None
    return driver
