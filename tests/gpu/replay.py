"""The replay part: kernels on our own streams, launched, captured and replayed, against numpy.

The kernels part does the like through torch's streams; this one needs no torch, and shows that the
device layer and the kernels fit together as resident rounds use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import as_line
from plugins.cuda import registry
from plugins.cuda.compiler import compile_kernel
from plugins.cuda.device import DeviceKernel
from plugins.cuda.kernel import Kernel, Trial
from plugins.cuda.trials import DeviceCase, Launchable, check
from runtime.device.cuda import CudaBuffer, CudaDevice, CudaStream, Enqueue, current_stream
from runtime.device.cuda_memory import copy
from tests.gpu.parts import Options
from tests.gpu.report import Case, Outcome

SEED = 20261130
RESERVE_S = 5.0
"""For the start of the process and the trial that runs when the time is over."""
MAX_BYTES = 2_000_000
"""Larger trials show nothing that smaller ones do not, but for their speed."""

Load = Callable[[Kernel], Launchable]
"""Compiles a kernel and loads it, on the thread that will launch it."""


class StreamGpu:
    """A `plugins.cuda.trials.Gpu` on one stream of a device."""

    stream = 0
    """Nobody's: `StreamKernel` asks for that of the running work."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.queue: CudaStream = device.create_stream("check")

    def upload(self, array: npt.NDArray[Any]) -> CudaBuffer:
        source = np.ascontiguousarray(array)
        staged = self._device.allocate_pinned("staged", (source.nbytes,), np.uint8)
        staged.array[:] = source.reshape(-1).view(np.uint8)
        buffer = self._device.allocate("array", (source.nbytes,), np.uint8)
        self.copy(buffer, staged)
        self.queue.sync()
        return buffer

    def download(self, tensor: CudaBuffer, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        staged = self._device.allocate_pinned("staged", tensor.shape, np.uint8)
        self.copy(staged, tensor)
        self.queue.sync()
        return staged.array.copy().view(like.dtype).reshape(like.shape)

    def address(self, tensor: CudaBuffer) -> int:
        return tensor.address

    def copy(self, target: CudaBuffer, source: CudaBuffer) -> None:
        self.queue.launch(Enqueue(partial(copy, source, target)), label="copy")

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        self.queue.begin_capture()
        work()
        graph = self.queue.end_capture()
        return lambda: graph.launch(self.queue)


class StreamKernel:
    """A kernel whose launches are work of a stream."""

    def __init__(self, queue: CudaStream, kernel: Kernel, load: Load) -> None:
        self._queue = queue
        self._loaded = queue.call(partial(load, kernel))

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        stream: int,
    ) -> None:
        del stream

        def enqueue() -> None:
            handle = int(current_stream().handle)
            self._loaded.launch(
                entry, values, num_blocks=num_blocks, num_threads=num_threads, stream=handle
            )

        self._queue.launch(Enqueue(enqueue), label=entry)


def run(options: Options) -> list[Case]:
    device = CudaDevice(options.ordinal)
    capability = device.capability

    def load(kernel: Kernel) -> Launchable:
        return DeviceKernel(compile_kernel(kernel, capability), kernel.args)

    try:
        return check_kernels(device, registry.kernels(), load, options.budget_s - RESERVE_S)
    finally:
        device.close()


def check_kernels(
    device: CudaDevice,
    kernels: Sequence[Kernel],
    load: Load,
    budget_s: float,
    clock: Callable[[], float] = monotonic,
) -> list[Case]:
    """A case for each small trial; those for which no time was left say so."""
    started = clock()
    gpu = StreamGpu(device)
    return [
        case
        for kernel in kernels
        for case in _cases(gpu, kernel, load, lambda: clock() - started < budget_s)
    ]


def _cases(
    gpu: StreamGpu, kernel: Kernel, load: Load, has_time: Callable[[], bool]
) -> Iterator[Case]:
    loaded: StreamKernel | None = None
    for trial in _small(kernel):
        name = f"{kernel.name}: {trial.label}"
        if not has_time():
            yield Case(name, Outcome.LEFT_OUT, "no time was left")
            continue
        started = monotonic()
        try:
            if loaded is None:
                loaded = StreamKernel(gpu.queue, kernel, load)
            case = trial.make(np.random.default_rng(SEED))
            errors = check(gpu, trial, loaded, DeviceCase(gpu, case, kernel.args))
        except Exception as error:
            errors = [as_line(repr(error))]
        outcome = Outcome.FAILED if errors else Outcome.PASSED
        yield Case(name, outcome, "; ".join(errors), monotonic() - started)


def _small(kernel: Kernel) -> list[Trial]:
    return [each for each in kernel.trials if each.num_bytes <= MAX_BYTES] or [kernel.trials[0]]
