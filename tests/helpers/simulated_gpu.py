"""Everything that a pair on GPUs is loaded and run by, without one: CUDA simulated, ONNX Runtime's
CUDA provider computing as the CPU's, and our kernels in their host forms. Whatever is enqueued runs
when the simulated GPU gets there.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from plugins.cuda import host, registry
from plugins.cuda.host import HostKernel
from runtime.loading.hardware import Hardware
from tests.helpers.fake_cuda import EAGER, FakeCuda
from tests.helpers.fake_ort_gpu import FakeOrt


def simulated_gpus(
    cuda: FakeCuda | None = None, ort: FakeOrt | None = None, **options: Any
) -> tuple[Hardware, FakeCuda, FakeOrt]:
    """``options`` are those of FakeCuda."""
    cuda = cuda or FakeCuda(EAGER, memory_bytes=2**32, **options)
    ort = ort or FakeOrt(cuda)
    hardware = Hardware(core=lambda: cuda, kernels=kernels_of(cuda), onnxruntime=ort)
    return hardware, cuda, ort


def require_freed(cuda: FakeCuda) -> None:
    """After everything that used the GPUs is gone."""
    gc.collect()  # an engine's error leads to its streams, by its traceback
    for thread in threading.enumerate():
        if thread.name.startswith("stream cuda"):
            thread.join(30.0)
    assert cuda.streams == []
    assert cuda.memory_free == [cuda.memory_bytes] * cuda.num_gpus


def kernels_of(cuda: FakeCuda) -> Callable[[str], EnqueuedKernel]:
    """Loads kernels as ``runtime.resident.kernels.work_on`` wants it."""
    return lambda name: EnqueuedKernel(cuda, host_kernel(name))


@cache
def host_kernel(name: str) -> HostKernel:
    kernel = registry.kernel(name)
    return host.load(kernel.source, kernel.args)


class EnqueuedKernel:
    """A host kernel that runs when its stream comes to it. See ``plugins.launcher.Launchable``."""

    def __init__(self, cuda: FakeCuda, kernel: HostKernel) -> None:
        self.cuda = cuda
        self.kernel = kernel

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        stream: int,
    ) -> None:
        assert num_threads % 32 == 0
        own = self.cuda.stream_of(stream)
        fields = dict(values)
        self.cuda.kernel(
            own, lambda: self.kernel.launch(entry, fields, num_blocks=num_blocks, num_threads=1)
        )
