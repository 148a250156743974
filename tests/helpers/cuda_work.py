"""Work for tests of CUDA streams, on the simulated CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from runtime.device.cuda import CudaStream, current_stream
from tests.helpers.fake_cuda import FakeCuda


def unmisused(cuda: FakeCuda) -> Iterator[FakeCuda]:
    """For a fixture: nothing that the test does may be against CUDA's rules."""
    yield cuda
    assert cuda.misuses == []


def enqueue(stream: CudaStream, cuda: FakeCuda, run: Callable[[], None], label: str = "") -> None:
    """Launch work that enqueues a kernel, which the simulated GPU `run`s."""
    stream.launch(lambda: cuda.kernel(current_stream(), run), label=label)


def append(stream: CudaStream, cuda: FakeCuda, log: list[str], *items: str) -> None:
    """Let the GPU append the items, a kernel each."""
    for item in items:
        enqueue(stream, cuda, partial(log.append, item), item)


def until_thread_is_there(stream: CudaStream) -> None:
    """Return when everything launched so far is enqueued, whatever the GPU has done of it."""
    stream.call(lambda: None)
