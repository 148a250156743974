"""Captures on CUDA: which launches become CUDA graphs, and that a replay means the same."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from engines.errors import DeviceError
from runtime.device.api import Graph
from runtime.device.cuda import CudaDevice, CudaStream, Enqueue, current_stream
from runtime.device.order import OrderError
from tests.helpers.cuda_work import unmisused
from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    yield from unmisused(FakeCuda(random.Random(3), with_calls=True))


def kernel(cuda: FakeCuda, run: Callable[[], None]) -> Enqueue:
    """Work that enqueues one kernel."""
    return Enqueue(lambda: cuda.kernel(current_stream(), run))


def capture(stream: CudaStream, cuda: FakeCuda, log: list[str], *items: str) -> Graph:
    stream.begin_capture()
    for item in items:
        stream.launch(kernel(cuda, partial(log.append, item)), label=item)
    return stream.end_capture()


def test_enqueueing_launches_become_one_graph(cuda: FakeCuda, device: CudaDevice) -> None:
    """One call a replay, and the work is not called again."""
    a, log = device.create_stream("a"), list[str]()
    graph = capture(a, cuda, log, "verify", "accept")
    assert log == []
    assert len(cuda.calls_of("kernel")) == 2
    for _ in range(3):
        graph.launch(a)
    a.sync()
    assert log == ["verify", "accept"] * 3
    assert len(cuda.calls_of("Graph.launch")) == 3
    assert len(cuda.calls_of("kernel")) == 2


def test_the_capture_is_made_on_the_streams_thread_in_a_mode_of_its_own(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    """The other engine's thread goes on allocating while this one captures."""
    capture(device.create_stream("a"), cuda, [], "verify")
    [begin] = cuda.calls_of("begin_building")
    assert (begin.thread, begin.detail) == ("stream a", "thread_local")


def test_other_work_between_is_called_at_each_replay(cuda: FakeCuda, device: CudaDevice) -> None:
    """In its place: after the graph before it was launched, before the one after it."""
    a, log = device.create_stream("a"), list[str]()
    num_graphs_launched: list[int] = []
    a.begin_capture()
    a.launch(kernel(cuda, partial(log.append, "first")))
    a.launch(lambda: num_graphs_launched.append(len(cuda.calls_of("Graph.launch"))))
    a.launch(kernel(cuda, partial(log.append, "second")))
    graph = a.end_capture()
    a.sync()
    assert num_graphs_launched == []
    graph.launch(a)
    graph.launch(a)
    a.sync()
    assert num_graphs_launched == [1, 3]
    assert log == ["first", "second"] * 2


def test_events_are_recorded_and_waited_for_outside_the_graphs(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    """An event inside a CUDA graph would tie the other stream's wait to the capture."""
    a, b, log = device.create_stream("a"), device.create_stream("b"), list[str]()
    start, end = device.create_event("start"), device.create_event("end")
    a.begin_capture()
    a.wait(start)
    a.launch(kernel(cuda, partial(log.append, "a")))
    a.record(end)
    graph = a.end_capture()
    assert cuda.calls_of("record", "wait") == []
    for _ in range(5):
        b.launch(kernel(cuda, partial(log.append, "b")))
        b.record(start)
        graph.launch(a)
        b.wait(end)
    b.sync()
    assert log == ["b", "a"] * 5


def test_a_graph_in_a_capture_becomes_part_of_the_new_one(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    a, b, log = device.create_stream("a"), device.create_stream("b"), list[str]()
    inner = capture(a, cuda, log, "inner")
    a.begin_capture()
    inner.launch(a)
    a.launch(kernel(cuda, partial(log.append, "outer")))
    outer = a.end_capture()
    outer.launch(b)
    b.sync()
    assert log == ["inner", "outer"]
    [launch] = cuda.calls_of("Graph.launch")
    assert launch.subject == b.handle


@pytest.mark.parametrize("call", ["sync", "allocate"])
def test_work_that_must_not_be_captured_is_named(
    cuda: FakeCuda, device: CudaDevice, call: str
) -> None:
    """At end_capture, with the remedy; the stream goes on as if nothing had been captured."""
    a, log = device.create_stream("a"), list[str]()
    pool = cuda.LegacyPinnedMemoryResource()
    calls: dict[str, Callable[[], object]] = {
        "sync": lambda: current_stream().sync(),
        "allocate": lambda: pool.allocate(8, stream=current_stream()),  # type: ignore[arg-type]
    }
    a.begin_capture()
    a.launch(kernel(cuda, lambda: None), label="verify")
    a.launch(Enqueue(lambda: [calls[call]()].clear()), label="careless")
    with pytest.raises(DeviceError, match=rf"capturing 'careless' failed.*{call}.*may only enq"):
        a.end_capture()
    a.launch(kernel(cuda, partial(log.append, "on")))
    a.sync()
    assert log == ["on"]
    capture(a, cuda, log, "again").launch(a)
    a.sync()
    assert log == ["on", "again"]


def test_a_capture_that_cuda_invalidated_is_refused(device: CudaDevice) -> None:
    """Also when the work itself swallowed the error: what was captured is not all of it."""
    a = device.create_stream("a")

    def careless() -> None:
        try:
            current_stream().sync()
        except Exception:
            return

    a.begin_capture()
    a.launch(Enqueue(careless))
    with pytest.raises(DeviceError, match="ending the capture failed: the build was invalidated"):
        a.end_capture()
    a.sync()


def test_an_error_kept_from_a_capture_does_not_end_the_next(device: CudaDevice) -> None:
    """The builder of the failed capture must not live as long as the error's traceback."""
    a, kept = device.create_stream("a"), list[BaseException]()
    a.begin_capture()
    a.launch(Enqueue(lambda: current_stream().sync()))
    with pytest.raises(DeviceError) as info:
        a.end_capture()
    kept.append(info.value)
    del info

    def let_go() -> None:
        kept.clear()
        gc.collect()

    a.begin_capture()
    a.launch(Enqueue(let_go))
    a.end_capture()


def test_a_failed_stream_captures_nothing(cuda: FakeCuda, device: CudaDevice) -> None:
    a = device.create_stream("a")
    cuda.fail("kernel", "CUDA_ERROR_INVALID_VALUE: no")
    a.launch(kernel(cuda, lambda: None), label="broken")
    with pytest.raises(DeviceError, match="'broken'"):
        capture(a, cuda, [], "verify")


def test_a_replay_that_fails_fails_its_stream(cuda: FakeCuda, device: CudaDevice) -> None:
    a = device.create_stream("a")
    graph = capture(a, cuda, [], "verify", "accept")
    cuda.fail("Graph.launch", "CUDA_ERROR_OUT_OF_MEMORY: no")
    graph.launch(a)
    with pytest.raises(DeviceError, match=r"the graph of verify, accept failed.*OUT_OF"):
        a.sync()


def test_the_checker_sees_every_launch_in_a_graph(cuda: FakeCuda) -> None:
    device = CudaDevice(core=cuda, check=True)
    a, b = device.create_stream("a"), device.create_stream("b")
    x = device.allocate("x", (4,), "i4")
    a.begin_capture()
    a.launch(kernel(cuda, lambda: None), label="look")
    a.launch(kernel(cuda, lambda: None), writes=[x], label="fill")
    graph = a.end_capture()
    graph.launch(a)
    with pytest.raises(OrderError, match="'fill' on stream 'a'"):
        b.launch(lambda: None, reads=[x], label="use")
    b.wait(a.record())
    b.launch(lambda: None, reads=[x], label="use")
    b.sync()
    device.close()


def test_a_dropped_graph_is_destroyed_only_after_it_ran() -> None:
    """The simulated CUDA calls the other order a misuse."""
    cuda = FakeCuda(random.Random(5), with_calls=True)
    device, log = CudaDevice(core=cuda), list[str]()
    a = device.create_stream("a")
    handle = a.handle
    graph = capture(a, cuda, log, "verify")
    cuda.hold(handle)
    graph.launch(a)
    a.call(lambda: None)
    del graph
    gc.collect()
    cuda.release(handle)
    device.allocate("after the free", (1,), "i1")
    assert log == ["verify"]
    assert [call.thread for call in cuda.calls_of("close")] == ["stream cuda:0 memory"]
    device.close()
    assert cuda.misuses == []
