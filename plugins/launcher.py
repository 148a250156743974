"""Runs the layers of an engine by kernels: a `plugins.layer.Launcher`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from engines.errors import BackendError
from plugins.cuda.compiler import compile_kernel
from plugins.cuda.device import DeviceKernel
from plugins.cuda.kernel import Kernel
from plugins.layer import DeviceTensor
from plugins.sample import kernel as sample_kernel
from plugins.sample import launch as sample
from plugins.sample.tensorrt import SIGNATURE as SAMPLE
from plugins.verify import kernel as verify_kernel
from plugins.verify import launch as verify
from plugins.verify.tensorrt import SIGNATURE as VERIFY


class Launchable(Protocol):
    """A kernel that is loaded; see `plugins.cuda.device.DeviceKernel`."""

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        stream: int,
    ) -> None:
        """Queue an entry and return; `values` holds numbers and device addresses."""


Enqueue = Callable[
    [Launchable, Sequence[DeviceTensor], Sequence[DeviceTensor], int, int],
    None,
]
"""(kernel, inputs, outputs, stream, workspace): queue one layer; see `plugins.layer.Launcher`."""

LAYERS: Mapping[str, tuple[Kernel, Enqueue]] = {
    VERIFY.full_name: (verify_kernel.KERNEL, verify.enqueue),
    SAMPLE.full_name: (sample_kernel.KERNEL, sample.enqueue),
}


class KernelLauncher:
    """See `plugins.layer.Launcher`. Holds no memory, so streams may run side by side."""

    def __init__(self, kernels: Mapping[str, Launchable]) -> None:
        """Args: kernels: the loaded kernel of each layer in `LAYERS`."""
        self._kernels = dict(kernels)

    def __call__(
        self,
        layer: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        stream: int,
        workspace: int,
    ) -> None:
        """See `plugins.layer.Launcher`."""
        if layer not in self._kernels:
            raise BackendError(
                f"{layer} has no kernel to run it; there are {', '.join(self._kernels)}"
            )
        _, enqueue = LAYERS[layer]
        enqueue(self._kernels[layer], inputs, outputs, stream, workspace)


def load(capability: str) -> KernelLauncher:
    """Compile the layers' kernels, or take them from the cache, and load them.

    Args:
        capability: of the GPU whose CUDA context is current, as in ``9.0``; the context must stay
            current in the threads that run engines.

    Raises MissingDependencyError without the compiler or driver, BackendError or DeviceError where
    they refuse.
    """
    return KernelLauncher(
        {
            layer: DeviceKernel(compile_kernel(kernel, capability), kernel.args)
            for layer, (kernel, _) in LAYERS.items()
        }
    )
