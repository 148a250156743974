"""A device on which chosen work fails, or never ends: any other device, with faults in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event as Flag

from engines.errors import BackendError, DeviceError
from runtime.device.api import Access, Device, Stream
from runtime.device.seeded import SeededDevice
from runtime.device.wrapped import WrappedDevice, WrappedStream

# Only a stall that nobody releases lasts so long; its thread must end some time.
_LONGEST_S = 120.0


@dataclass(slots=True)
class Fault:
    """What happens to the ``number``-th work (from 0) of that ``label`` on the stream named
    ``stream``. It raises BackendError instead of running, or ``late`` after it has run; with
    ``stalls`` it does not begin before ``release``, and then does run."""

    stream: str
    label: str
    number: int = 0
    late: bool = False
    stalls: bool = False
    is_placed: bool = False
    has_struck: bool = False
    _released: Flag = field(default_factory=Flag)
    _on_release: list[Callable[[], None]] = field(default_factory=list)

    def release(self) -> None:
        """End the stall."""
        self._released.set()
        for each in self._on_release:
            each()
        self._on_release.clear()

    def wrap(self, work: Callable[[], None]) -> Callable[[], None]:
        """``work`` with the fault in it."""

        def struck() -> None:
            self.has_struck = True
            if self.stalls:
                self._released.wait(_LONGEST_S)
                work()
                return
            if self.late:
                work()
            raise BackendError(f"{self.label!r} on {self.stream!r} failed, as it was told to")

        return struck

    def hold(self, device: SeededDevice, stream: Stream) -> None:
        """Stall a stream whose work runs in the host's thread."""
        self.has_struck = True
        device.hold(stream)

        def let_go() -> None:
            with suppress(DeviceError):  # it may be closed by now: another fault had struck it
                device.release(stream)

        self._on_release.append(let_go)


class FaultyDevice(WrappedDevice):
    """See ``api.Device``. Closing releases what stalls."""

    def __init__(self, inner: Device, faults: Sequence[Fault] = ()) -> None:
        super().__init__(inner)
        self._faults = faults

    def create_stream(self, name: str, *, cores: Sequence[int] | None = None) -> Stream:
        faults = [fault for fault in self._faults if fault.stream == name]
        return _FaultyStream(self._inner.create_stream(name, cores=cores), self._inner, faults)

    def close(self) -> None:
        for fault in self._faults:
            fault.release()
        super().close()


@dataclass(frozen=True, slots=True)
class _FaultyStream(WrappedStream):
    """Counts the work of each label, on this stream and on others of its name before it."""

    device: Device
    faults: Sequence[Fault]

    def launch(
        self,
        work: Callable[[], None],
        *,
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        label: str = "",
    ) -> None:
        for fault in self.faults:
            if fault.label != label or fault.is_placed:
                continue
            fault.is_placed = fault.number == 0
            fault.number -= 1
            if not fault.is_placed:
                continue
            if fault.stalls and isinstance(self.device, SeededDevice):
                fault.hold(self.device, self.inner)
            else:
                work = fault.wrap(work)
        self.inner.launch(work, reads=reads, writes=writes, label=label)
