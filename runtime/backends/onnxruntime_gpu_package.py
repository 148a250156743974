"""The ``onnxruntime`` package with its CUDA provider: is it here, whole and new enough?

``onnxruntime-gpu`` is published beside ``onnxruntime`` and installs the same module. Where both are
installed the files of one lie over those of the other, and which of them wins is chance.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
from typing import Any

from engines.errors import BackendError, MissingDependencyError
from runtime.backends.telemetry import switch_off_telemetry

PROVIDER = "CUDAExecutionProvider"
LEAST_VERSION = (1, 31)
"""The first release whose CUDA provider we read through: kernels of TensorScatter and Attention
(opset 24), and CUDA graphs that replay without waiting for the GPU."""
INSTALL = "pip install 'onnxruntime-gpu[cuda,cudnn]>=1.31'"
_REPLACE = f"pip uninstall -y onnxruntime onnxruntime-gpu && {INSTALL}"


def import_onnxruntime_gpu() -> Any:
    """The module, with CUDA's libraries loaded.

    Raises MissingDependencyError without any onnxruntime, BackendError for one that cannot run
    here: built for the CPU, too old, or two of them over each other.
    """
    if len(found := installed()) > 1:
        raise BackendError(
            f"{' and '.join(found)} are both installed and overwrite each other's files; "
            f"keep one: {_REPLACE}"
        )
    switch_off_telemetry()
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError(
            "onnxruntime-gpu", "gpu", "running this bundle on a GPU"
        ) from None
    require_cuda_build(onnxruntime)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints which libraries it did not find
        onnxruntime.preload_dlls()
    return onnxruntime


def installed() -> list[str]:
    """The distributions here that install the module, with their versions."""
    found = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def require_cuda_build(module: Any) -> None:
    """BackendError unless the module has the CUDA provider and is new enough."""
    version = str(module.__version__)
    if PROVIDER not in module.get_available_providers():
        raise BackendError(
            f"ONNX Runtime {version} is built without the CUDA provider (the package onnxruntime "
            f"is for CPUs); replace it: {_REPLACE}"
        )
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise BackendError(
            f"onnxruntime-gpu {version} is older than {least}, whose CUDA provider can run these "
            f"engines; update it: {INSTALL}"
        )
