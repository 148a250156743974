"""A device that tells when its streams worked: any other device, with a clock around its work.

The clock is read inside the work's own thread, so what is told is when work ran, not when it was
launched. On a device whose work is launched to an accelerator these are the times of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from runtime.device.api import Access, Device, Stream
from runtime.device.wrapped import WrappedDevice, WrappedStream

OnWork: TypeAlias = Callable[[str, str, float, float], None]
"""Called with (stream, label, start in seconds, end in seconds) when work has ended, by whatever
thread ran it; also when it raised."""


class TracedDevice(WrappedDevice):
    """See ``api.Device``."""

    def __init__(
        self, inner: Device, on_work: OnWork, clock: Callable[[], float] = perf_counter
    ) -> None:
        super().__init__(inner)
        self._on_work = on_work
        self._clock = clock

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> Stream:
        return _TracedStream(
            self._inner.create_stream(name, cores=cores), self._on_work, self._clock
        )


@dataclass(frozen=True, slots=True)
class _TracedStream(WrappedStream):
    on_work: OnWork
    clock: Callable[[], float]

    def launch(
        self,
        work: Callable[[], None],
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        shown = label or getattr(work, "__qualname__", type(work).__name__)

        def timed() -> None:
            started = self.clock()
            try:
                work()
            finally:
                self.on_work(self.inner.name, shown, started, self.clock())

        self.inner.launch(timed, reads=reads, writes=writes, label=shown)
