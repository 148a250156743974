"""What the contract of all devices cannot show of CUDA: its threads, and the order on the GPU.

On a simulated CUDA (`tests.helpers.fake_cuda`), where a GPU can be held in the middle of its work.
"""

from __future__ import annotations

import random
import signal
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import DeviceError
from runtime.device.api import Event
from runtime.device.cuda import CudaDevice, CudaStream, current_stream
from runtime.device.order import OrderError
from tests.helpers.cuda_work import append, enqueue, until_thread_is_there
from tests.helpers.fake_cuda import EAGER, LAZY, FakeCuda

# --- threads -----------------------------------------------------------------------------------


def test_every_thread_sets_its_gpu_before_any_other_call(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    """Else a stream would be created on whatever GPU is current: the first one."""
    assert cuda.calls is not None
    device.create_stream("a")
    device.create_stream("b")
    second = CudaDevice(1, core=cuda)
    until_thread_is_there(second.create_stream("draft"))
    second.close()
    first_calls = {call.thread: call for call in reversed(cuda.calls)}
    assert {(name, call.name, call.subject) for name, call in first_calls.items()} == {
        ("stream a", "set_current", 0),
        ("stream b", "set_current", 0),
        ("stream cuda:0 memory", "set_current", 0),
        ("stream cuda:1 memory", "set_current", 1),
        ("stream draft", "set_current", 1),
    }


def test_the_host_thread_only_looks_at_events(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream], device: CudaDevice
) -> None:
    """The caller's own current GPU must stay as it is, and nothing in CUDA may block it."""
    a, b = streams
    append(a, cuda, [], "a")
    b.wait(a.record())
    b.sync()
    device.allocate("x", (4,), "i4")
    assert cuda.calls is not None
    host = threading.current_thread().name
    assert {call.name for call in cuda.calls if call.thread == host} == {"is_done"}


def test_current_stream_is_that_of_the_work(streams: tuple[CudaStream, CudaStream]) -> None:
    a, b = streams
    seen: list[int] = []
    for stream in (a, b, a):
        stream.launch(lambda: seen.append(int(current_stream().handle)))
        stream.sync()
    assert seen == [a.handle, b.handle, a.handle]
    assert a.handle != b.handle
    with pytest.raises(DeviceError, match="outside work of a CUDA stream"):
        current_stream()


def test_call_runs_on_the_streams_thread_and_its_error_is_the_hosts(
    streams: tuple[CudaStream, CudaStream],
) -> None:
    """An engine that does not load must not leave a failed stream behind."""
    a, _ = streams
    assert a.call(lambda: threading.current_thread().name) == "stream a"

    def refuse() -> None:
        raise ValueError("no such plan")

    with pytest.raises(ValueError, match="no such plan"):
        a.call(refuse)
    a.sync()
    a.begin_capture()
    with pytest.raises(DeviceError, match="call is not allowed while stream 'a' captures"):
        a.call(lambda: None)
    a.end_capture()


# --- the order on the GPU ----------------------------------------------------------------------


def test_no_thread_waits_for_the_gpu(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    """The GPU of `a` is stuck: `b` must still get to enqueue what comes after the wait."""
    a, b = streams
    log: list[str] = []
    cuda.hold(a.handle)
    append(a, cuda, log, "a")
    done = a.record()
    b.wait(done)
    append(b, cuda, log, "b")
    after = b.record()
    until_thread_is_there(b)
    assert log == []
    assert not done.is_done
    assert not after.is_done
    cuda.release(a.handle)
    b.sync()
    assert log == ["a", "b"]
    assert done.is_done


def test_every_wait_is_for_the_event_recorded_before_it(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    """Recording again must neither move an old wait nor be missed by a new one.

    One CUDA event recorded twice would do that: the other thread may come to its wait late.
    """
    a, b = streams
    event = a.record()
    b.wait(event)
    b.wait(a.record(event))
    b.sync()
    recorded = [call.detail for call in cuda.calls_of("record") if call.subject == a.handle]
    waited = [call.detail for call in cuda.calls_of("wait") if call.subject == b.handle]
    assert len({str(handle) for handle in recorded}) == 2
    assert waited == recorded


def test_a_wait_for_what_is_known_done_costs_no_call(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    a, b = streams
    event = a.record()
    event.sync()
    b.wait(event)
    b.sync()
    assert cuda.calls_of("wait") == []


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["launch", "record", "wait"])), max_size=20
    ),
    seed=st.integers(0, 2**16),
)
def test_the_gpu_keeps_every_order_that_events_make(
    calls: list[tuple[int, str]], seed: int
) -> None:
    """Each launch checks, when the GPU runs it, that all it comes after has run."""
    cuda = FakeCuda(random.Random(seed))
    device = CudaDevice(core=cuda)
    streams = [device.create_stream(str(number)) for number in range(3)]
    behind: list[set[int]] = [set(), set(), set()]  # what each stream's next launch comes after
    event, marked = device.create_event(), set[int]()
    ran: set[int] = set()
    early: list[int] = []

    def run(number: int, before: frozenset[int]) -> None:
        if not before <= ran:
            early.append(number)
        ran.add(number)

    for number, (index, call) in enumerate(calls):
        stream = streams[index]
        if call == "launch":
            enqueue(stream, cuda, partial(run, number, frozenset(behind[index])))
            behind[index].add(number)
        elif call == "record":
            stream.record(event)
            marked = set(behind[index])
        else:
            stream.wait(event)
            behind[index] |= marked
    for stream in streams:
        stream.sync()
    device.close()
    assert early == []
    assert ran == {number for number, (_, call) in enumerate(calls) if call == "launch"}
    assert cuda.misuses == []


def test_without_a_wait_the_simulated_gpu_runs_in_any_order() -> None:
    """Guards the test above: an order that the events do not make must not come for free."""
    orders = set[str]()
    for seed in range(40):
        cuda = FakeCuda(random.Random(seed))
        device, log = CudaDevice(core=cuda), list[str]()
        a, b = device.create_stream("a"), device.create_stream("b")
        append(a, cuda, log, "a")
        until_thread_is_there(a)
        append(b, cuda, log, "b")
        a.sync()
        b.sync()
        device.close()
        orders.add("".join(log))
    assert orders == {"ab", "ba"}


def test_sync_waits_for_the_gpu() -> None:
    """The thread has long enqueued everything; what counts is the event."""
    cuda = FakeCuda(LAZY)
    device, log = CudaDevice(core=cuda), list[str]()
    a = device.create_stream("a")
    append(a, cuda, log, "first", "second")
    until_thread_is_there(a)
    assert log == []
    a.sync()
    assert log == ["first", "second"]
    device.close()


def test_sync_waits_for_what_a_call_enqueued() -> None:
    """Guards the shortcut of a sync right after a record."""
    cuda = FakeCuda(LAZY)
    device, log = CudaDevice(core=cuda), list[str]()
    a = device.create_stream("a")
    a.record()
    a.call(lambda: cuda.kernel(current_stream(), partial(log.append, "warm-up")))
    a.sync()
    assert log == ["warm-up"]
    device.close()


def test_ctrl_c_interrupts_a_sync_with_a_stuck_gpu(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    a, _ = streams
    cuda.hold(a.handle)
    append(a, cuda, [], "a")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            a.sync()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    cuda.release(a.handle)
    a.sync()


def test_a_stream_waits_for_an_event_of_another_gpu(cuda: FakeCuda, device: CudaDevice) -> None:
    """How the draft's GPU gets to know what the target's decided, without the host."""
    other, log = CudaDevice(1, core=cuda), list[str]()
    target, draft = device.create_stream("target"), other.create_stream("draft")
    cuda.hold(target.handle)
    append(target, cuda, log, "verify")
    draft.wait(target.record())
    append(draft, cuda, log, "lookup")
    until_thread_is_there(draft)
    assert log == []
    cuda.release(target.handle)
    draft.sync()
    assert log == ["verify", "lookup"]
    target.begin_capture()
    captured = target.record()
    with pytest.raises(DeviceError, match="is capturing; wait for it after launching the graph"):
        draft.wait(captured)
    target.end_capture()
    other.close()


def test_a_stream_records_an_event_of_another_gpu(cuda: FakeCuda, device: CudaDevice) -> None:
    """Rounds make all their events on the target's device; the draft's stream records some."""
    other, log = CudaDevice(1, core=cuda), list[str]()
    target, draft = device.create_stream("target"), other.create_stream("draft")
    proposed = device.create_event("proposed")
    for number in range(2):
        cuda.hold(draft.handle)
        append(draft, cuda, log, f"draft {number}")
        assert draft.record(proposed) is proposed
        target.wait(proposed)
        append(target, cuda, log, f"verify {number}")
        until_thread_is_there(target)
        assert len(log) == 2 * number
        assert not proposed.is_done
        cuda.release(draft.handle)
        target.sync()
        proposed.sync()
    assert log == ["draft 0", "verify 0", "draft 1", "verify 1"]
    other.close()


def test_a_failure_comes_over_from_another_gpu(cuda: FakeCuda, device: CudaDevice) -> None:
    """Also to a sync right after a record, which must not take the wait for done."""
    other = CudaDevice(1, core=cuda)
    target, draft = device.create_stream("target"), other.create_stream("draft")
    cuda.fail("kernel", "CUDA_ERROR_INVALID_VALUE: no")
    append(target, cuda, [], "verify")
    failed = target.record()
    draft.record()
    draft.wait(failed)
    with pytest.raises(DeviceError, match="'verify' on stream 'target'"):
        draft.sync()
    other.close()


def test_an_event_of_another_cuda_is_refused(device: CudaDevice) -> None:
    foreign = CudaDevice(core=FakeCuda())
    event: Event = foreign.create_stream("a").record()
    with pytest.raises(DeviceError, match="an event of another device"):
        device.create_stream("a").wait(event)
    foreign.close()


def test_the_checker_counts_only_what_the_gpu_has_done() -> None:
    """A look at an event that the thread has recorded and the GPU not reached orders nothing."""
    cuda = FakeCuda(EAGER)
    device = CudaDevice(core=cuda, check=True)
    a, x = device.create_stream("a"), device.allocate("x", (1,), "i4")
    cuda.hold(a.handle)
    a.launch(lambda: cuda.kernel(current_stream(), lambda: None), writes=[x])
    event = a.record()
    until_thread_is_there(a)
    assert not event.is_done
    with pytest.raises(OrderError):
        device.host_access(reads=[x])
    cuda.release(a.handle)
    assert event.is_done
    device.host_access(reads=[x])
    device.close()
