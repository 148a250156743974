"""Hold a stream, so that ordering is tested and not hoped for."""

from __future__ import annotations

import threading
from types import TracebackType

from runtime.device.api import Device, Stream
from runtime.device.seeded import SeededDevice

# Only a broken test waits this long; it then fails instead of hanging.
_PATIENCE_S = 30.0


class Latch:
    """Holds a stream at its tail until released: what was launched before it still runs.

    As a context manager it holds on entry and releases on exit, also when the test fails in
    between; otherwise closing the device would have to wait for the latch.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._released = threading.Event()
        self._reached = threading.Event()

    def __enter__(self) -> Latch:
        if isinstance(self._device, SeededDevice):
            self._device.hold(self._stream)
        else:
            self._stream.launch(self._block, label="latch")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let the stream go on; more than once is fine."""
        if isinstance(self._device, SeededDevice) and not self._released.is_set():
            self._device.release(self._stream)
        self._released.set()

    def wait_until_reached(self) -> None:
        """Block until the stream's thread stands at the latch (devices with threads only)."""
        assert self._reached.wait(_PATIENCE_S), "the stream never came to the latch"

    def _block(self) -> None:
        self._reached.set()
        assert self._released.wait(_PATIENCE_S), "the latch was never released"
