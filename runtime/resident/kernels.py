"""What work enqueues beside engine calls: our kernels, copies, and small values of the host.

One object for a device. On a GPU everything goes to the stream of the running work and nothing
waits; on the host the kernels' host forms run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from plugins.cuda import registry
from plugins.launcher import Launchable
from plugins.put import kernel as put
from runtime.device.api import Device
from runtime.device.copies import Copies, copies_of
from runtime.device.cuda import CudaDevice, CudaStream
from runtime.device.cuda_lane import current_stream

NAMES = ("put", "take", "branch_mask", "verify", "sample", "lookup", "fork", "chain", "kv_commit")
"""The kernels that a pair needs (``plugins.cuda.registry``)."""

Load = Callable[[str], Launchable]
"""A kernel's name -> the kernel, loaded where its work runs."""


class Launches(Protocol):
    """To be used in work."""

    def launch(
        self,
        kernel: str,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
    ) -> None:
        """Enqueue an entry of a kernel. ``values`` are the fields that are not null or 0: numbers
        and addresses. Raises UsageError for a field that the kernel does not have."""


class Work:
    """Launches, copies and puts of one device."""

    def __init__(self, launches: Launches, copies: Copies) -> None:
        self.launch = launches.launch
        self.copy = copies.copy
        self.copy_2d = copies.copy_2d

    def put(self, segments: Sequence[tuple[int, np.ndarray]]) -> None:
        """Write host arrays to device addresses, which must not overlap; the call copies them."""
        waiting: list[tuple[int, np.ndarray]] = []
        room = put.MAX_BYTES
        for address, array in segments:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            while data.size:
                if not room or len(waiting) == put.MAX_SEGMENTS:
                    self._put(waiting)
                    waiting, room = [], put.MAX_BYTES
                part = data[:room]
                waiting.append((address, part))
                address, data, room = address + part.size, data[part.size :], room - part.size
        if waiting:
            self._put(waiting)

    def _put(self, segments: Sequence[tuple[int, np.ndarray]]) -> None:
        self.launch(
            "put", put.ENTRY, put.values(segments), num_blocks=1, num_threads=put.NUM_THREADS
        )


class HostLaunches:
    """Runs the kernels' host forms, one thread a block, on the calling thread."""

    def __init__(self) -> None:
        """Compiles the kernels, or takes them from the cache. Raises BackendError without g++."""
        from plugins.cuda import host

        self._kernels = {
            name: host.load(kernel.source, kernel.args)
            for name, kernel in ((name, registry.kernel(name)) for name in NAMES)
        }

    def launch(
        self,
        kernel: str,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,  # noqa: ARG002 - the host form takes any number
    ) -> None:
        loaded = self._kernels[kernel]
        fields = {**loaded.args.blank(), **values}
        loaded.launch(entry, fields, num_blocks=num_blocks, num_threads=1)


class DeviceLaunches:
    """Queues the kernels on the stream of the running work."""

    def __init__(self, load: Load) -> None:
        """``load`` is called here, once a kernel, so construct this on a stream of the GPU."""
        self._kernels = {name: (registry.kernel(name).args, load(name)) for name in NAMES}

    def launch(
        self,
        kernel: str,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
    ) -> None:
        args, loaded = self._kernels[kernel]
        loaded.launch(
            entry,
            {**args.blank(), **values},
            num_blocks=num_blocks,
            num_threads=num_threads,
            stream=int(current_stream().handle),
        )


def work_on(device: Device, stream: CudaStream | None = None, load: Load | None = None) -> Work:
    """What work on a device enqueues with.

    Args:
        stream: of a CudaDevice, one of its streams: the kernels are loaded on its thread.
        load: how; by default they are compiled for the GPU, or taken from the cache.

    Raises BackendError or MissingDependencyError where there is no compiler or driver.
    """
    if not isinstance(device, CudaDevice):
        return Work(HostLaunches(), copies_of(device))
    assert stream is not None
    chosen = load or _compiled_for(device.capability)
    return Work(stream.call(lambda: DeviceLaunches(chosen)), copies_of(device))


def _compiled_for(capability: str) -> Load:
    from plugins.cuda.compiler import compile_kernel
    from plugins.cuda.device import DeviceKernel

    def load(name: str) -> Launchable:
        kernel = registry.kernel(name)
        return DeviceKernel(compile_kernel(kernel, capability), kernel.args)

    return load
