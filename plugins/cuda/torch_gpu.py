"""A GPU through torch, for measuring kernels: memory, streams, graphs and timing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import DeviceError, MissingDependencyError

_FLUSH_BYTES = 256 * 1024 * 1024
"""More than the second-level cache of any GPU here (an H200 has 50 MiB)."""


class TorchGpu:
    """The current GPU. Arrays are torch tensors of the type and shape of their numpy arrays."""

    def __init__(self) -> None:
        """Raises MissingDependencyError without torch, DeviceError without a GPU."""
        try:
            import torch
        except ImportError:
            raise MissingDependencyError("torch", "torch", "measuring kernels on a GPU") from None
        if not torch.cuda.is_available():
            raise DeviceError("no CUDA GPU was found; kernels are measured on a machine with one")
        self._torch: Any = torch  # torch's own types are only partly there
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        major, minor = torch.cuda.get_device_capability()
        self.capability = f"{major}.{minor}"
        self.name = str(torch.cuda.get_device_name())

    @property
    def stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        """Wait for all work; raises what torch says of a GPU that is broken."""
        self._torch.cuda.synchronize()

    def upload(self, array: npt.NDArray[Any]) -> Any:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        flat = self._torch.from_numpy(raw.copy()).cuda()
        return flat.view(getattr(self._torch, array.dtype.name)).reshape(array.shape)

    def download(self, tensor: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        raw: npt.NDArray[np.uint8]
        raw = tensor.reshape(-1).view(self._torch.uint8).cpu().numpy()
        return raw.view(like.dtype).reshape(like.shape)

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        """`work` as a graph; the result replays it."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    def times_s(
        self, work: Callable[[], object], prepare: Callable[[], None], count: int
    ) -> list[float]:
        """Seconds that `work` takes on the GPU, cold: before each run `prepare` is called and the
        second-level cache overwritten, neither of which counts. Two events lie around each run,
        which add about a launch's time.
        """
        times = []
        for _ in range(count):
            prepare()
            self._flush.zero_()
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
        return times
