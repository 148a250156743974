"""cuda.core with the calls of the driver that it lacks, as one object."""

from __future__ import annotations

from typing import Any


class CoreAndDriver:
    """See `cuda_api.CudaCore`."""

    def __init__(self, core: Any, driver: Any) -> None:
        self._core = core
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def greatest_priority(self) -> int:
        _, greatest = self._call("cuCtxGetStreamPriorityRange")
        return int(greatest)

    def free_memory(self, ordinal: int) -> tuple[int, int]:
        self._core.Device(ordinal).set_current()
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def copy(self, source: int, target: int, num_bytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", target, source, num_bytes, self._driver.CUstream(stream))

    def copy_2d(
        self,
        source: int,
        target: int,
        *,
        width: int,
        height: int,
        source_pitch: int,
        target_pitch: int,
        stream: int,
    ) -> None:
        pieces = self._driver.CUDA_MEMCPY2D()
        anywhere = self._driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        pieces.srcMemoryType, pieces.srcDevice, pieces.srcPitch = anywhere, source, source_pitch
        pieces.dstMemoryType, pieces.dstDevice, pieces.dstPitch = anywhere, target, target_pitch
        pieces.WidthInBytes, pieces.Height = width, height
        self._call("cuMemcpy2DAsync", pieces, self._driver.CUstream(stream))

    def fill(self, address: int, value: int, num_bytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", address, value, num_bytes, self._driver.CUstream(stream))

    def is_capturing(self, stream: int) -> bool:
        (status,) = self._call("cuStreamIsCapturing", self._driver.CUstream(stream))
        return bool(status != self._driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        error, *results = getattr(self._driver, name)(*arguments)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {error.name}")
        return tuple(results)
