"""Copies between addresses, enqueued on the stream of the running work.

A session knows its tensors by address, and the parts of a cache that move are strided. Buffers of
`api` are copied whole (`cuda_memory.copy`); this is for everything else.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

from runtime.device.api import Device
from runtime.device.cuda import CudaDevice
from runtime.device.cuda_api import CudaCore
from runtime.device.cuda_errors import cuda_call
from runtime.device.cuda_lane import current_stream


class Copies(Protocol):
    """To be called in the work of a stream. All numbers are addresses and bytes.

    On a GPU both ends are its memory or page-locked memory of the host, nothing is waited for, and
    a capture may record it. Source and target must not overlap.
    """

    def copy(self, source: int, target: int, num_bytes: int) -> None:
        """Copy `num_bytes` from one address to another."""

    def copy_2d(
        self,
        source: int,
        target: int,
        *,
        width: int,
        height: int,
        source_pitch: int,
        target_pitch: int,
    ) -> None:
        """Copy `height` pieces of `width` bytes; pieces lie a pitch apart from each other."""


def copies_of(device: Device) -> Copies:
    """The copies of a device: enqueued where it is a GPU, done at once elsewhere."""
    return CudaCopies(device.core) if isinstance(device, CudaDevice) else HostCopies()


class HostCopies:
    """See `Copies`."""

    def copy(self, source: int, target: int, num_bytes: int) -> None:
        ctypes.memmove(target, source, num_bytes)

    def copy_2d(
        self,
        source: int,
        target: int,
        *,
        width: int,
        height: int,
        source_pitch: int,
        target_pitch: int,
    ) -> None:
        for row in range(height):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)


@dataclass(frozen=True, slots=True)
class CudaCopies:
    """See `Copies`."""

    core: CudaCore

    def copy(self, source: int, target: int, num_bytes: int) -> None:
        if num_bytes:
            with cuda_call(f"copying {num_bytes} bytes"):
                self.core.copy(source, target, num_bytes, int(current_stream().handle))

    def copy_2d(
        self,
        source: int,
        target: int,
        *,
        width: int,
        height: int,
        source_pitch: int,
        target_pitch: int,
    ) -> None:
        if not width or not height:
            return
        with cuda_call(f"copying {height} x {width} bytes"):
            self.core.copy_2d(
                source,
                target,
                width=width,
                height=height,
                source_pitch=source_pitch,
                target_pitch=target_pitch,
                stream=int(current_stream().handle),
            )
