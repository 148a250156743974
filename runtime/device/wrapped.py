"""A device around another one: everything is passed on; derived ones change what is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy.typing as npt

from runtime.device.api import Access, Buffer, Device, Event, Graph, Stream


class WrappedDevice:
    """See ``api.Device``; ``inner`` does it all and is closed with this one."""

    def __init__(self, inner: Device) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> Stream:
        return WrappedStream(self._inner.create_stream(name, cores=cores))

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
class WrappedStream:
    """See ``api.Stream``."""

    inner: Stream

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
        self.inner.launch(work, reads=reads, writes=writes, label=label)

    def record(self, event: Event | None = None) -> Event:
        return self.inner.record(event)

    def wait(self, event: Event) -> None:
        self.inner.wait(event)

    def sync(self) -> None:
        self.inner.sync()

    def begin_capture(self) -> None:
        self.inner.begin_capture()

    def end_capture(self) -> Graph:
        return _WrappedGraph(self.inner.end_capture())

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True, slots=True)
class _WrappedGraph:
    """The captured calls are the changed ones already; only the stream must be the inner one."""

    inner: Graph

    def launch(self, stream: Stream) -> None:
        self.inner.launch(stream.inner if isinstance(stream, WrappedStream) else stream)
