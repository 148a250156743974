"""What the check ran on: the card, its driver, and the versions of what takes part."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from engines.errors import DeviceError, MissingDependencyError, as_line

PACKAGES = (
    *("numpy", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "torch", "onnxruntime"),
    *("onnxruntime-gpu", "tensorrt", "tensorrt-rtx-cu13", "tokenizers", "pytest", "hypothesis"),
)


def facts_of(device: str, system: Any = None) -> dict[str, Any]:
    """Card, driver and versions.

    Args:
        device: as in ``cuda:0``.
        system: `cuda.core` and `cuda.bindings.driver`, or two like them.

    Raises MissingDependencyError without cuda.core, DeviceError where there is no such GPU.
    """
    core, driver = system or _cuda()
    try:
        gpu = core.Device(int(device.partition(":")[2] or -1))
        gpu.set_current()
        _, number = driver.cuDriverGetVersion()
        facts = {
            "card": gpu.name,
            "capability": ".".join(map(str, gpu.compute_capability)),
            "memory_bytes": int(driver.cuDeviceTotalMem(gpu.device_id)[1]),
            "driver": _driver_release(core),
            "driver_cuda": f"{number // 1000}.{number % 1000 // 10}",
        }
    except Exception as error:  # cuda.core's own, of no public class, and the driver's absence
        raise DeviceError(
            f"{device} cannot be opened ({as_line(str(error))}); nvidia-smi -L lists the GPUs"
        ) from error
    return {
        **facts,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _driver_release(core: Any) -> str:
    """As in 580.95.05; "unknown" where the management library is not there to say."""
    try:
        return ".".join(f"{n:02}" for n in core.system.get_kernel_mode_driver_version())
    except Exception:  # cuda.core's own, of no public class
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cuda() -> tuple[Any, Any]:
    try:
        import cuda.core as core
        from cuda.bindings import driver
    except ImportError:
        raise MissingDependencyError("cuda-core", "cuda", "checking a GPU") from None
    return core, driver
