"""A device that tells when its streams worked: any other device, with a clock around its work.

The clock is read inside the work's own thread, so what is told is when work ran, not when it was
launched. On a device whose work is launched to an accelerator these are the times of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import numpy.typing as npt

from runtime.device.api import Access, Buffer, Device, Event, Graph, Stream

OnWork: TypeAlias = Callable[[str, str, float, float], None]
"""Called with (stream, label, start in seconds, end in seconds) when work has ended, by whatever
thread ran it; also when it raised."""


class TracedDevice:
    """See ``api.Device``; ``inner`` does it all and is closed with this one."""

    def __init__(
        self, inner: Device, on_work: OnWork, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._inner = inner
        self._on_work = on_work
        self._clock = clock

    @property
    def name(self) -> str:
        return self._inner.name

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> Stream:
        return _TracedStream(
            self._inner.create_stream(name, cores=cores), self._on_work, self._clock
        )

    def create_event(self, name: str = "") -> Event:
        return self._inner.create_event(name)

    def allocate(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer:
        return self._inner.allocate(name, shape, dtype)

    def host_access(
        self, *, reads: Sequence[Access] = (), writes: Sequence[Access] = (), label: str = ""
    ) -> None:
        self._inner.host_access(reads=reads, writes=writes, label=label)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True, slots=True)
class _TracedStream:
    inner: Stream
    on_work: OnWork
    clock: Callable[[], float]

    @property
    def name(self) -> str:
        return self.inner.name

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

    def record(self, event: Event | None = None) -> Event:
        return self.inner.record(event)

    def wait(self, event: Event) -> None:
        self.inner.wait(event)

    def sync(self) -> None:
        self.inner.sync()

    def begin_capture(self) -> None:
        self.inner.begin_capture()

    def end_capture(self) -> Graph:
        return _TracedGraph(self.inner.end_capture())

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True, slots=True)
class _TracedGraph:
    """The captured calls hold their clock already; only the stream must be the inner one."""

    inner: Graph

    def launch(self, stream: Stream) -> None:
        self.inner.launch(stream.inner if isinstance(stream, _TracedStream) else stream)
