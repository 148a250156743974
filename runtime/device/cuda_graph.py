"""What a capture becomes on CUDA: launches that only enqueue turn into CUDA graphs.

    kept call                          at end_capture           at graph.launch
    ---------------------------------  -----------------------  ----------------------------------
    launch(Enqueue(work)), in a row    run once, captured       one launch of the CUDA graph
    launch(any other work)             -                        the work is called, as on the host
    record, wait                       -                        made anew

So the contract of `api` holds for all work, and a step that is `Enqueue` from end to end costs one
call. Events stay outside the CUDA graphs: each replay records and waits for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from runtime.device.api import Access, Stream
from runtime.device.cuda_api import GpuGraph
from runtime.device.cuda_errors import cuda_call
from runtime.device.cuda_lane import current_stream


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Work that does nothing but enqueue on `current_stream()`, and the same each time.

    A captured launch of it is run once, by `end_capture`; replays run what it enqueued. It must
    not sync or allocate, and what it reads in Python is read at the capture.
    """

    work: Callable[[], None]

    def __call__(self) -> None:
        self.work()


@dataclass(frozen=True, slots=True)
class KeptLaunch:
    """A launch of Enqueue work as a capture keeps it."""

    work: Enqueue
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    label: str

    def __call__(self, stream: Stream) -> None:
        stream.launch(self.work, reads=self.reads, writes=self.writes, label=self.label)


class CapturedGraph:
    """A CUDA graph and the launches that went into it; their buffers live as long as it does."""

    def __init__(self, gpu_graph: GpuGraph, launches: Sequence[KeptLaunch]) -> None:
        self.launches = tuple(launches)
        self.label = f"graph of {', '.join(launch.label for launch in launches)}"
        self._gpu_graph = gpu_graph
        # CUDA leaves it to the caller that no two threads launch one graph at a time.
        self._lock = Lock()

    def enqueue(self) -> None:
        """Launch the CUDA graph on the stream of the calling thread."""
        with self._lock, cuda_call(f"launching the {self.label}"):
            self._gpu_graph.launch(current_stream())


def build(launches: Sequence[KeptLaunch]) -> GpuGraph:
    """Capture the launches on the stream of the calling thread, which goes on as before.

    Raises DeviceError that names the launch which cannot be captured.
    """
    builder = current_stream().create_graph_builder()
    try:
        with cuda_call("beginning a capture"):
            # Other threads may go on allocating; this one gets an error where it would.
            builder.begin_building("thread_local")
        for launch in launches:
            with cuda_call(f"capturing {launch.label!r}"):
                launch.work()
        with cuda_call("ending the capture"):
            return builder.end_building().complete()
    finally:
        with suppress(Exception):  # an invalidated capture ends with an error; it is raised above
            builder.close()
        # Where close failed, the builder ends "its" capture once more when it dies. That must be
        # now, not when somebody lets go of the error and another capture is going on.
        del builder
