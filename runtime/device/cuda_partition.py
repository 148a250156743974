"""Shares of one GPU's multiprocessors: each stream that asks for a share gets its own (a green
context), so that two engines on one GPU do not take them from each other.
"""

from __future__ import annotations

from engines.errors import DeviceError
from runtime.device.cuda_api import CudaCore, Gpu, GpuContext, SmResource
from runtime.device.cuda_errors import cuda_call

_REMEDY = "this GPU or its driver may not divide its multiprocessors, leave sm_share out"


class SmPartitions:
    """The shares given out so far. A stream that is created again gets its old share back."""

    def __init__(self, core: CudaCore, device: str) -> None:
        self._core = core
        self._device = device
        self._contexts: dict[tuple[str, float], GpuContext] = {}
        self._rest: SmResource | None = None
        self._num_all = 0
        self._num_free = 0

    def context(self, gpu: Gpu, stream: str, share: float) -> GpuContext:
        """The context whose streams run on about `share` of all multiprocessors of `gpu`.

        Rounded down to what the GPU can divide into, but at least its smallest part. Raises
        DeviceError when so many are not free, or cannot be had apart at all.
        """
        if (stream, share) not in self._contexts:
            with cuda_call(f"sm_share {share:g} of {self._device}", _REMEDY):
                self._contexts[stream, share] = self._divide(gpu, stream, share)
        return self._contexts[stream, share]

    def _divide(self, gpu: Gpu, stream: str, share: float) -> GpuContext:
        if self._rest is None:
            self._rest = gpu.resources.sm
            self._num_all = self._num_free = self._rest.sm_count
        step = max(self._rest.coscheduled_alignment, 1)
        count = max(int(self._num_all * share) // step * step, self._rest.min_partition_size)
        if count > self._num_free:
            raise DeviceError(
                f"stream {stream!r} asks for sm_share {share:g} of {self._device}: {count} of "
                f"{self._num_all} multiprocessors, of which {self._num_free} are free; ask for less"
            )
        part, rest, num_free = self._rest, self._rest, 0
        if count < self._num_free:
            [part], rest = self._rest.split(self._core.SMResourceOptions(count=count))
            num_free = rest.sm_count
        context = gpu.create_context(self._core.ContextOptions(resources=[part]))
        self._rest, self._num_free = rest, num_free
        return context
