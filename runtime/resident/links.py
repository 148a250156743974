"""Messages between the two sides, as copies that work enqueues (``exchange`` says which)."""

from __future__ import annotations

from collections.abc import Callable

from runtime.device.api import Buffer, Device
from runtime.device.copies import copies_of
from runtime.device.cuda import CudaBuffer, CudaDevice, CudaLink

Half = Callable[[], None]


class Link:
    """One message's way. ``send`` is for work of the sender's stream, ``receive`` for work of the
    receiver's, which has to wait for an event behind ``send``. The next ``send`` must come after
    this ``receive``."""

    def __init__(
        self, source: Buffer, source_device: Device, target: Buffer, target_device: Device
    ) -> None:
        self.send: Half
        self.receive: Half
        if isinstance(source_device, CudaDevice) and isinstance(target_device, CudaDevice):
            assert isinstance(source, CudaBuffer)
            assert isinstance(target, CudaBuffer)
            link = CudaLink(source, source_device, target, target_device)
            self.send, self.receive = link.send, link.receive
        else:
            copy = copies_of(source_device).copy
            self.send = lambda: copy(source.address, target.address, source.nbytes)
            self.receive = _nothing


def _nothing() -> None:
    pass
