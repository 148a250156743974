"""The ssd:: layers of a plan by their numpy reference, on the host.

It lets a plan run wherever polygraphy runs it, and is the yardstick for kernels. It waits for the
stream and copies the logits to the host and back, so it is for checks, never for generating.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import BackendError
from engines.tensors import DType
from plugins.layer import DeviceTensor
from plugins.registry import OPERATORS


class ReferenceLauncher:
    """See ``plugins.layer.Launcher``; memory goes through polygraphy's CUDA wrapper."""

    def __call__(
        self,
        layer: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        stream: int,
        workspace: int = 0,  # noqa: ARG002 - numpy has memory of its own
    ) -> None:
        from polygraphy.cuda import wrapper

        operator = OPERATORS.get(layer.partition("::")[2].partition("@")[0])
        if operator is None:
            raise BackendError(f"{layer} has no reference to run it with")
        wrapper().stream_synchronize(stream)
        results = operator.reference(*map(_read, inputs))
        for tensor, result in zip(outputs, results, strict=True):
            _write(tensor, result)


def _read(tensor: DeviceTensor) -> npt.NDArray[Any]:
    from polygraphy.cuda import MemcpyKind, wrapper

    is_bfloat16 = tensor.dtype is DType.BFLOAT16
    array = np.empty(tensor.shape, np.uint16 if is_bfloat16 else tensor.dtype.numpy)
    wrapper().memcpy(array.ctypes.data, tensor.address, array.nbytes, MemcpyKind.DeviceToHost)
    if is_bfloat16:  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _write(tensor: DeviceTensor, value: npt.NDArray[Any]) -> None:
    from polygraphy.cuda import MemcpyKind, wrapper

    array = np.ascontiguousarray(value, tensor.dtype.numpy).reshape(tensor.shape)
    wrapper().memcpy(tensor.address, array.ctypes.data, array.nbytes, MemcpyKind.HostToDevice)
