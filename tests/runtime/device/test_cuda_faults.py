"""How errors of CUDA surface, and that a device closes in any state. On a simulated CUDA."""

from __future__ import annotations

import sys
import threading

import pytest

from engines.errors import DeviceError, MissingDependencyError
from runtime.device.cuda import CudaDevice, CudaStream, load_cuda
from tests.helpers.cuda_work import append, enqueue, until_thread_is_there
from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_cuda_objects import FakeCudaError

LOST = "CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched what is not its own. See the documents."


def fault() -> None:
    raise FakeCudaError(LOST)


def test_a_call_that_fails_names_itself_and_the_remedy(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    """And the stream that waits for it fails with it, instead of running on nothing."""
    a, b = streams
    cuda.fail("record", "CUDA_ERROR_LAUNCH_FAILED: an exception on the device. An essay.")
    failed = a.record()
    b.wait(failed)
    message = (
        r"recording 'event 1' on stream 'a' of cuda:0 failed: CUDA_ERROR_LAUNCH_FAILED: an "
        r"exception on the device; the CUDA context is lost.*compute-sanitizer$"
    )
    for sync in (a.sync, failed.sync, b.sync, a.sync):
        with pytest.raises(DeviceError, match=message):
            sync()
    assert failed.is_done


def test_a_fault_of_the_gpu_surfaces_at_the_next_sync_and_sticks(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    a, b = streams
    cuda.hold(a.handle)
    enqueue(a, cuda, fault, "verify")
    event = a.record()
    b.wait(event)
    until_thread_is_there(b)
    cuda.release(a.handle)
    assert event.is_done, "failed counts as done, only sync tells which"
    log: list[str] = []
    a.launch(lambda: log.append("skipped"))
    for sync in (event.sync, a.sync, b.sync, a.sync):
        with pytest.raises(DeviceError, match=r"ILLEGAL_ADDRESS.*the CUDA context is lost"):
            sync()
    assert log == []


def test_an_error_in_work_names_the_work(
    cuda: FakeCuda, streams: tuple[CudaStream, CudaStream]
) -> None:
    cuda.fail("kernel", "CUDA_ERROR_INVALID_VALUE: no such grid")
    a, _ = streams
    append(a, cuda, [], "accept")
    with pytest.raises(DeviceError, match=r"work 'accept' on stream 'a'.*CUDA_ERROR_INVALID_VALUE"):
        a.sync()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("set_current", "CUDA_ERROR_NO_DEVICE: none", "opening cuda:0 failed.*nvidia-smi -L"),
        ("set_current", '"cuda" is an NVIDIA driver library', "install the NVIDIA driver"),
        ("create_stream", "CUDA_ERROR_OUT_OF_MEMORY: no", "creating stream 'cuda:0 memory'"),
        ("DeviceMemoryResource", "CUDA_ERROR_NOT_SUPPORTED: no", "creating the memory pool"),
    ],
)
def test_a_gpu_that_cannot_be_opened_is_refused_at_once(
    call: str, error: str, message: str
) -> None:
    """And leaves no thread behind."""
    cuda = FakeCuda()
    cuda.fail(call, error)
    with pytest.raises(DeviceError, match=message):
        CudaDevice(core=cuda)
    assert not any("cuda:0" in thread.name for thread in threading.enumerate())
    assert cuda.streams == []


def test_a_gpu_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"opening cuda:7 failed: CUDA_ERROR_INVALID_DEVICE"):
        CudaDevice(7, core=FakeCuda())


def test_without_cuda_core_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load_cuda.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(MissingDependencyError, match="cuda-core"):
        CudaDevice()


def test_close_lets_the_gpu_finish_and_destroys_the_stream_on_its_thread(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    """Destroying a stream under running work would leave its buffers to be freed too early."""
    a, log = device.create_stream("a"), list[str]()
    handle = a.handle
    cuda.hold(handle)
    append(a, cuda, log, "begun")
    until_thread_is_there(a)
    timer = threading.Timer(0.02, cuda.release, [handle])
    timer.start()
    a.close()
    timer.join()
    assert log == ["begun"]
    closed = [call for call in cuda.calls_of("sync", "close") if call.subject == handle]
    assert [(call.name, call.thread) for call in closed] == [
        ("sync", "stream a"),
        ("close", "stream a"),
    ]


def test_close_gives_up_on_a_gpu_that_hangs(cuda: FakeCuda) -> None:
    device = CudaDevice(core=cuda, close_timeout_s=0.01)
    a = device.create_stream("a")
    handle = a.handle
    cuda.hold(handle)
    append(a, cuda, [], "for ever")
    until_thread_is_there(a)
    with pytest.raises(DeviceError, match="'a' is still in the middle of its work"):
        device.close()
    device.close()
    cuda.release(handle)


def test_close_gives_up_on_memory_that_a_hanging_gpu_still_has(cuda: FakeCuda) -> None:
    """What was let go of is freed when the GPU is idle, which the host must not wait for."""
    device = CudaDevice(core=cuda, close_timeout_s=0.01)
    a = device.create_stream("a")
    buffer = device.allocate("x", (4,), "i4")
    handle = a.handle
    cuda.hold(handle)
    append(a, cuda, [], "for ever")
    until_thread_is_there(a)
    del buffer
    with pytest.raises(DeviceError, match="memory' is still in the middle of its work"):
        device.close()
    cuda.release(handle)


def test_close_after_a_fault_is_silent_and_leaves_no_thread(
    cuda: FakeCuda, device: CudaDevice
) -> None:
    a = device.create_stream("a")
    enqueue(a, cuda, fault)
    until_thread_is_there(a)
    device.close()
    names = {thread.name for thread in threading.enumerate()}
    assert not {"stream a", "stream cuda:0 memory"} & names


def test_a_close_refused_inside_work_closes_nothing(device: CudaDevice) -> None:
    """Its own memory thread too must go on."""
    a = device.create_stream("a")
    a.launch(device.close)
    with pytest.raises(DeviceError, match="inside work"):
        a.sync()
    device.allocate("x", (4,), "i4")
