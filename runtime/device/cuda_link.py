"""Copies between two GPUs: over their own link where they have one, else through the host."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtime.device.cuda_graph import Enqueue
from runtime.device.cuda_memory import CudaBuffer, copy, require_same_size

if TYPE_CHECKING:
    from runtime.device.cuda import CudaDevice


class CudaLink:
    """Copies one buffer to another, in two halves that an event has to order:

        sender.launch(link.send)
        receiver.wait(sender.record(sent))
        receiver.launch(link.receive)

    `sender` is a stream of the source's GPU, `receiver` one of the target's. Over a direct link
    the first half copies and the second does nothing. Otherwise both copy, over page-locked
    memory that the link owns: the next `send` must come after this `receive`.
    """

    def __init__(
        self,
        source: CudaBuffer,
        source_device: CudaDevice,
        target: CudaBuffer,
        target_device: CudaDevice,
    ) -> None:
        """Raises DeviceError when the sizes differ, or when the memory for staging is short."""
        require_same_size(source, target)
        self.is_direct = _can_copy_directly(source_device, target, target_device)
        if self.is_direct:
            self.send = Enqueue(partial(copy, source, target))
            self.receive = Enqueue(_nothing)
        else:
            staged = source_device.allocate_pinned(
                f"{source.name} on its way", source.shape, source.dtype
            )
            self.send = Enqueue(partial(copy, source, staged))
            self.receive = Enqueue(partial(copy, staged, target))


def _can_copy_directly(
    source_device: CudaDevice, target: CudaBuffer, target_device: CudaDevice
) -> bool:
    """Whether the source's GPU can do the whole copy; lets it into the other's memory if so."""
    if source_device.ordinal == target_device.ordinal or target.memory.is_pinned:
        return True
    return target_device.open_to(source_device)


def _nothing() -> None:
    pass
