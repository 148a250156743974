"""CUDA and the vendors' modules, as loading finds them; tests put others in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plugins.launcher import load as load_layer_kernels
from plugins.layer import Launcher
from runtime.backends.tensorrt.vendor import Vendor, load_vendor
from runtime.device.cuda import load_cuda
from runtime.device.cuda_api import CudaCore
from runtime.device.cuda_errors import cuda_call
from runtime.devices import CPU
from runtime.resident.kernels import Load


@dataclass(frozen=True, slots=True)
class Hardware:
    """What GPUs are driven by.

    ``core`` gives cuda.core, ``vendor`` the TensorRT of a backend's name, ``launcher`` the kernels
    of engine layers for a compute capability. ``kernels`` loads those between engines; None
    compiles them for the GPU. ``onnxruntime`` is the module with a CUDA provider, None for the one
    that is installed.
    """

    core: Callable[[], CudaCore] = load_cuda
    vendor: Callable[[str], Vendor] = load_vendor
    launcher: Callable[[str], Launcher] = load_layer_kernels
    kernels: Load | None = None
    onnxruntime: Any = None

    def free_memory(self, device: str) -> int | None:
        """Bytes free on a GPU by its name ("cuda:0"); None for the CPU, where nobody can say.

        Raises MissingDependencyError and DeviceError.
        """
        if device == str(CPU):
            return None
        ordinal = int(device.partition(":")[2])
        with cuda_call(f"asking {device} for its free memory", "nvidia-smi -L lists the GPUs"):
            free, _ = self.core().free_memory(ordinal)
        return free


INSTALLED = Hardware()
"""What this machine has."""
