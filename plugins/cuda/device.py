"""Compiled kernels on a GPU: loaded into the current context, launched on a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from engines.errors import DeviceError, MissingDependencyError, UsageError
from plugins.cuda.args import Args
from plugins.cuda.compiler import KernelImage


class DeviceKernel:
    """The entries of one image. The CUDA context that was current at loading must stay current.

    `launch` may be captured into a graph: it allocates nothing and waits for nothing, and the
    struct is copied into the launch.
    """

    def __init__(self, image: KernelImage, args: Args, driver: Any = None) -> None:
        """Load an image.

        Args:
            driver: the module `cuda.bindings.driver`, or one like it.

        Raises MissingDependencyError without cuda.bindings, DeviceError where the driver refuses.
        """
        self.image = image
        self.args = args
        self._driver = driver or _driver_module()
        (module,) = self._call("cuModuleLoadData", image.cubin)
        self._functions = {
            each.name: self._call("cuModuleGetFunction", module, each.name.encode())[0]
            for each in image.entries
        }

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
            values: the fields of the kernel's struct; arrays are device addresses.
            num_threads: a multiple of 32, at most what the entry was compiled for.
            stream: a cudaStream_t, perhaps in capture.

        Raises UsageError on values or a grid that cannot be, DeviceError where the driver refuses.
        """
        if entry not in self._functions:
            raise UsageError(f"{self.image.name} has no entry {entry}")
        if num_threads % 32 or num_threads < 32:
            raise UsageError(f"a block has a multiple of 32 threads, found {num_threads}")
        in_host_memory = [name for name, value in values.items() if isinstance(value, np.ndarray)]
        if in_host_memory:
            raise UsageError(f"a GPU needs device addresses of {', '.join(in_host_memory)}")
        packed = self.args.pack(values)
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
