"""What the draft's lookups found, on its way to the statistics: late, and never waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from engines.errors import DeviceError
from runtime.device.api import Buffer, Device
from runtime.device.cuda import CudaDevice
from runtime.device.cuda_api import GpuEvent
from runtime.device.cuda_errors import cuda_call
from runtime.device.cuda_lane import current_stream
from runtime.resident.kernels import Work
from runtime.resident.slabs import host_readable

Rows = list[list[int]]
NUM_BUFFERS = 4
"""Rounds that may be under way to the host; of further ones the report is left out."""


@dataclass(frozen=True, slots=True)
class _Sent:
    number: int
    buffer: Buffer
    event: GpuEvent | None


class Reports:
    """Copies of a device array of ``shape`` int64, in order. ``send`` is work of one stream;
    one thread at a time polls, which may be another one."""

    def __init__(self, device: Device, work: Work, shape: tuple[int, int]) -> None:
        self._work = work
        self._is_gpu = isinstance(device, CudaDevice)
        self._under_way: deque[_Sent] = deque()
        self._free: SimpleQueue[Buffer] = SimpleQueue()
        for index in range(NUM_BUFFERS):
            self._free.put(host_readable(device, f"report {index}", shape, "int64"))

    def send(self, number: int, source: int) -> None:
        """Enqueue the copy of the array at the address ``source`` as report ``number``."""
        try:
            buffer = self._free.get_nowait()
        except Empty:
            return
        self._work.copy(source, buffer.address, buffer.nbytes)
        event = current_stream().record() if self._is_gpu else None
        self._under_way.append(_Sent(number, buffer, event))

    def poll(self) -> list[tuple[int, Rows]]:
        """The reports that have arrived since the last call. Of a GPU that failed there are none:
        the reader, who may be the target's, has no part in that, and its stream says so itself."""
        arrived = []
        while self._under_way:
            sent = self._under_way[0]
            if not _has_arrived(sent):
                break
            self._under_way.popleft()
            arrived.append((sent.number, sent.buffer.array.tolist()))
            self._free.put(sent.buffer)
        return arrived


def _has_arrived(sent: _Sent) -> bool:
    try:
        with cuda_call(f"report {sent.number}"):
            return sent.event is None or sent.event.is_done
    except DeviceError:
        return False
