"""CUDA and the vendors' modules, as loading finds them; tests put others in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.errors import DeviceError, MissingDependencyError
from plugins.launcher import load as load_layer_kernels
from plugins.layer import Launcher
from runtime.backends.tensorrt.vendor import Vendor, load_vendor
from runtime.device.cuda import load_cuda
from runtime.device.cuda_api import CudaCore
from runtime.device.cuda_driver import INSTALL, require_driver
from runtime.device.cuda_errors import cuda_call
from runtime.devices import CPU
from runtime.resident.kernels import Load


def installed_cuda() -> CudaCore:
    """cuda.core, where a GPU can be driven by it.

    Raises DeviceError without an NVIDIA driver, which is named first: no package helps then; and
    without cuda.core.
    """
    require_driver()
    try:
        return load_cuda()
    except MissingDependencyError as error:
        raise DeviceError(
            f"a GPU is driven by the package {error.package}, which is not installed; {INSTALL}"
        ) from None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What GPUs are driven by.

    ``core`` gives cuda.core, ``vendor`` the TensorRT of a backend's name, ``launcher`` the kernels
    of engine layers for a compute capability. ``kernels`` loads those between engines; None
    compiles them for the GPU. ``onnxruntime`` is the module with a CUDA provider, None for the one
    that is installed.
    """

    core: Callable[[], CudaCore] = installed_cuda
    vendor: Callable[[str], Vendor] = load_vendor
    launcher: Callable[[str], Launcher] = load_layer_kernels
    kernels: Load | None = None
    onnxruntime: Any = None

    def free_memory(self, device: str) -> int | None:
        """Bytes free on a GPU by its name ("cuda:0"); None for the CPU, where nobody can say.

        Raises DeviceError.
        """
        if device == str(CPU):
            return None
        ordinal = int(device.partition(":")[2])
        try:
            core = self.core()
        except DeviceError as error:
            raise DeviceError(f"{device}: {error}") from error
        with cuda_call(f"asking {device} for its free memory", "nvidia-smi -L lists the GPUs"):
            free, _ = core.free_memory(ordinal)
        return free


INSTALLED = Hardware()
"""What this machine has."""
