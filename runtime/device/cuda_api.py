"""The part of cuda.core (1.2) that the CUDA device calls, and nothing else.

`cuda.load_cuda` gives the real thing; tests give a simulation of these names. A test holds both to
the names and signatures below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class GpuEvent(Protocol):
    @property
    def is_done(self) -> bool:
        """Whether the work before the event is done; raises what that work failed with."""


class GpuGraph(Protocol):
    """An executable graph. Not safe to launch from two threads at a time."""

    def launch(self, stream: GpuStream) -> None: ...

    def close(self) -> None: ...


class GpuGraphBuilder(Protocol):
    def begin_building(self, mode: str = "relaxed") -> GpuGraphBuilder: ...

    def end_building(self) -> GpuGraphBuilder: ...

    def complete(self) -> GpuGraph: ...

    def close(self) -> None:
        """Ends the capture if it is still going on."""


class GpuStream(Protocol):
    @property
    def handle(self) -> Any:
        """``int(handle)`` is the ``CUstream`` that other libraries take."""

    def record(self, event: GpuEvent | None = None) -> GpuEvent: ...

    def wait(self, event_or_stream: GpuEvent) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...

    def create_graph_builder(self) -> GpuGraphBuilder: ...


class GpuBuffer(Protocol):
    @property
    def handle(self) -> Any:
        """``int(handle)`` is the address."""

    def copy_to(self, dst: GpuBuffer, *, stream: GpuStream) -> object: ...

    def fill(self, value: int, *, stream: GpuStream) -> None: ...

    def close(self, stream: GpuStream | None = None) -> None: ...


class MemoryPool(Protocol):
    def allocate(self, size: int, *, stream: GpuStream) -> GpuBuffer: ...


class PeerSet(Protocol):
    def add(self, value: int) -> None: ...


class DevicePool(MemoryPool, Protocol):
    @property
    def peer_accessible_by(self) -> PeerSet:
        """The GPUs that may read and write the pool."""


class SmResource(Protocol):
    """A set of streaming multiprocessors."""

    @property
    def sm_count(self) -> int: ...

    @property
    def min_partition_size(self) -> int: ...

    @property
    def coscheduled_alignment(self) -> int: ...

    def split(self, options: object) -> tuple[Sequence[SmResource], SmResource]: ...


class GpuResources(Protocol):
    @property
    def sm(self) -> SmResource: ...


class GpuContext(Protocol):
    def create_stream(self, options: object = None) -> GpuStream: ...


class Gpu(Protocol):
    """``cuda.core.Device``: one object a thread."""

    @property
    def resources(self) -> GpuResources: ...

    @property
    def compute_capability(self) -> tuple[int, int]: ...

    @property
    def name(self) -> str: ...

    def set_current(self) -> object: ...

    def sync(self) -> None: ...

    def can_access_peer(self, peer: int) -> bool: ...

    def create_stream(self, obj: None = None, options: object = None) -> GpuStream: ...

    def create_context(self, options: object = None) -> GpuContext: ...


class CudaCore(Protocol):
    """The module ``cuda.core``, and the calls of the driver that it lacks."""

    Device: Callable[[int], Gpu]
    StreamOptions: Callable[..., object]
    """Keywords nonblocking, priority."""
    DeviceMemoryResource: Callable[..., DevicePool]
    """Arguments device_id, options."""
    DeviceMemoryResourceOptions: Callable[[], object]
    LegacyPinnedMemoryResource: Callable[[], MemoryPool]
    ContextOptions: Callable[..., object]
    """Keyword resources."""
    SMResourceOptions: Callable[..., object]
    """Keyword count."""

    def greatest_priority(self) -> int:
        """The most urgent stream priority of the current GPU; the least urgent is 0."""

    def free_memory(self, ordinal: int) -> tuple[int, int]:
        """Bytes of a GPU's memory that are free, and all of them. Sets the thread's GPU."""

    def copy(self, source: int, target: int, num_bytes: int, stream: int) -> None:
        """``cuMemcpyAsync``: enqueue a copy between addresses of any GPU or page-locked memory."""

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
        """``cuMemcpy2DAsync``: the same for ``height`` pieces of ``width`` bytes."""

    def fill(self, address: int, value: int, num_bytes: int, stream: int) -> None:
        """``cuMemsetD8Async``: enqueue setting bytes of a GPU's memory, each to ``value``."""

    def is_capturing(self, stream: int) -> bool:
        """``cuStreamIsCapturing``: whether what is enqueued on the stream now goes into a graph."""
