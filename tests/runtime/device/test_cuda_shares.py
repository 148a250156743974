"""One GPU for two engines: priorities and shares of its multiprocessors. On a simulated CUDA."""

from __future__ import annotations

import pytest

from engines.errors import DeviceError
from runtime.device.cuda import CudaDevice, CudaStreamOptions
from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_cuda_objects import GREATEST_PRIORITY


def test_an_urgent_stream_has_the_greatest_priority(cuda: FakeCuda) -> None:
    device = CudaDevice(core=cuda, streams={"target": CudaStreamOptions(is_urgent=True)})
    device.create_stream("target")
    device.create_stream("draft")
    _, *options = [call.detail for call in cuda.calls_of("create_stream")]
    assert [getattr(each, "priority", 0) for each in options] == [GREATEST_PRIORITY, None]
    assert all(getattr(each, "nonblocking", False) for each in options)
    device.close()


def test_shares_of_a_gpu_do_not_overlap_and_a_new_stream_gets_the_old_share(
    cuda: FakeCuda,
) -> None:
    """Each split of the whole GPU would give the same first multiprocessors."""
    options = {
        "target": CudaStreamOptions(sm_share=0.75),
        "draft": CudaStreamOptions(sm_share=0.25),
    }
    device = CudaDevice(core=cuda, streams=options)
    target, draft = device.create_stream("target"), device.create_stream("draft")
    sms = {stream.handle: stream.sms for stream in cuda.streams}
    first, second = sms[target.handle], sms[draft.handle]
    assert first is not None
    assert second is not None
    assert (first.numbers, second.numbers) == (range(96), range(96, 128))
    target.close()
    again = device.create_stream("target")
    assert {stream.handle: stream.sms for stream in cuda.streams}[again.handle] is first
    device.close()


def test_the_last_share_may_take_the_whole_rest() -> None:
    cuda = FakeCuda(num_sms=128)
    options = dict.fromkeys(["target", "draft"], CudaStreamOptions(sm_share=0.5))
    device = CudaDevice(core=cuda, streams=options)
    device.create_stream("target")
    device.create_stream("draft")
    assert [len(stream.sms.numbers) for stream in cuda.streams if stream.sms] == [64, 64]
    device.close()


def test_a_share_that_is_not_free_is_refused_with_figures(cuda: FakeCuda) -> None:
    options = dict.fromkeys(["target", "draft"], CudaStreamOptions(sm_share=0.75))
    device = CudaDevice(core=cuda, streams=options)
    device.create_stream("target")
    message = "'draft' asks for sm_share 0.75 of cuda:0: 96 of 132 multiprocessors, of which 36"
    with pytest.raises(DeviceError, match=message):
        device.create_stream("draft")
    device.close()


def test_a_gpu_that_cannot_be_divided_is_refused_by_name() -> None:
    device = CudaDevice(
        core=FakeCuda(has_partitions=False), streams={"a": CudaStreamOptions(sm_share=0.5)}
    )
    with pytest.raises(DeviceError, match=r"sm_share 0\.5 of cuda:0 failed.*leave sm_share out"):
        device.create_stream("a")
    device.create_stream("b")
    device.close()


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(DeviceError, match="expected a part of the GPU"):
        CudaStreamOptions(sm_share=share)
