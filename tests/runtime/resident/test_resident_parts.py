"""The parts of resident pairs one by one: what the host keeps, writes and reads."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engines.errors import BackendError, CapacityError, DeviceError, UsageError
from engines.manifest import TARGET, Limits
from engines.tensors import DType
from plugins.put import kernel as put
from runtime.backends.device_host import HostDeviceSession
from runtime.backends.toy import ToySession
from runtime.device.api import Buffer
from runtime.device.copies import copies_of
from runtime.device.cuda import CudaDevice, current_stream
from runtime.device.host import HostDevice
from runtime.request import Request
from runtime.resident import Exchange, ResidentDraft, Work, require_supported
from runtime.resident.laws import MAX_BANNED_IDS, law_of
from runtime.resident.readings import as_float32
from runtime.resident.reports import NUM_BUFFERS, Reports
from runtime.resident.slabs import Slab
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.mailbox import Kind
from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_cuda_objects import FakeCudaError
from tests.helpers.resident_pair import ResidentPair
from tests.helpers.toy_pair import plain, tables

GREEDY = SamplingParams()


def bytes_of(buffer: Buffer, address: int, dtype: str, count: int) -> np.ndarray:
    start = address - buffer.address
    size = count * np.dtype(dtype).itemsize
    return buffer.array.view(np.uint8)[start : start + size].view(dtype)


# --- slabs, puts, parameters ------------------------------------------------------------------


def test_the_arrays_of_a_slab_do_not_overlap(work) -> None:
    """Each row of each array holds what was put there, whatever stands beside it."""
    shapes = {"a": ("int64", (3, 2)), "b": ("bool", (3,)), "c": ("float32", (3, 5))}
    slab = Slab(HostDevice(), "slab", shapes)
    values = {
        index: {"a": [index, -index], "b": index == 1, "c": np.arange(5) + index / 2}
        for index in range(3)
    }
    for index, each in values.items():
        work.put(slab.segments(index, each))
    for index, each in values.items():
        for field, value in each.items():
            found = bytes_of(slab.buffer, slab.row(field, index), shapes[field][0], np.size(value))
            assert found.tolist() == np.asarray(value, shapes[field][0]).reshape(-1).tolist()


@pytest.mark.parametrize(("num_arrays", "size"), [(1, 1), (70, 3), (2, 5000), (0, 1), (33, 200)])
def test_a_put_of_any_size_is_as_many_launches_as_it_needs(work, num_arrays, size) -> None:
    """A launch carries so many bytes and segments, and no more."""
    arrays = [np.arange(size, dtype=np.int64) + index for index in range(num_arrays)]
    target = HostDevice().allocate("target", (num_arrays + 1, size), np.int64)
    work.put([(target.address + 8 * size * index, array) for index, array in enumerate(arrays)])
    for index, array in enumerate(arrays):
        assert target.array[index].tolist() == array.tolist()
    assert not target.array[num_arrays].any()
    assert put.MAX_BYTES < 8 * 5000


def test_more_banned_ids_than_there_is_room_for_are_refused() -> None:
    """Silently left out, a text could end before its least length."""
    most = tuple(range(MAX_BANNED_IDS))
    row: Any = law_of(SamplingParams(banned_ids=most, banned_before=9))
    assert row["ban_ids"] == list(most)
    with pytest.raises(CapacityError, match="at most 64"):
        law_of(SamplingParams(banned_ids=(*most, 99), banned_before=9))


def test_banned_ids_are_the_engines_own() -> None:
    """A draft of a reduced vocabulary does not know them all."""
    row: Any = law_of(SamplingParams(banned_ids=(4, 5, 6), banned_before=9), {6: 1, 4: 0})
    assert row["ban_ids"][:3] == [0, 1, -1]


# --- what comes to the host -------------------------------------------------------------------


def test_logits_of_every_type_are_read() -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.25]], np.float32)
    padded = np.zeros(64, np.uint8)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    for dtype, stored in (
        (DType.FLOAT32, values),
        (DType.FLOAT16, values.astype(np.float16)),
        (DType.BFLOAT16, bits),
    ):
        raw = padded.copy()
        raw[: stored.nbytes] = stored.reshape(-1).view(np.uint8)
        assert as_float32(raw, dtype, (2, 2)).tolist() == values.tolist()


def test_a_damaged_target_is_an_error_with_a_remedy(work) -> None:
    """NaN has no token; token 0 would be emitted for ever."""
    pair = ResidentPair(HostDevice(check=True), "ar", work=work)
    pair.target_session.table[:, 3] = np.nan
    with pytest.raises(BackendError, match="weights are damaged"):
        pair.generate([[1, 3]], [SamplingParams()])
    pair.device.close()


def test_a_row_that_was_not_judged_is_marked(work) -> None:
    """Nobody's rows, and one whose text has ended: read as outcomes, they would emit tokens."""
    pair = ResidentPair(HostDevice(check=True), "ar", work=work, max_batch=3)
    requests = [Request([1], GREEDY, 40, (), 96), Request([2], GREEDY, 3, (), 96)]
    pair.scheduler.run(requests)
    pair.device.close()
    for rows, _ in pair.mailbox.readings:
        assert rows.array[:, mail.KIND].tolist()[1:] == [Kind.SKIP, Kind.SKIP]


def test_reports_are_left_out_when_nobody_reads_them(work) -> None:
    """Statistics may lag; the draft never waits for them, and no later report is lost for it."""
    device = HostDevice()
    source = device.allocate("source", (1, 2), np.int64)
    reports = Reports(device, work, (1, 2))
    for number in range(NUM_BUFFERS + 3):
        source.array[:] = number
        reports.send(number, source.address)
    assert reports.poll() == [(number, [[number, number]]) for number in range(NUM_BUFFERS)]
    source.array[:] = 99
    reports.send(99, source.address)
    assert reports.poll() == [(99, [[99, 99]])]
    assert reports.poll() == []


def test_statistics_learn_what_the_device_found(work) -> None:
    """Each judged row once, but for those of the last rounds, which nobody reads any more. What an
    ended text has left in its slot is not learnt round after round."""
    pair = ResidentPair(HostDevice(check=True), "ssd", work=work, agreement=1e9, max_batch=2)
    ended = plain(pair.table, Request([2], GREEDY, 9, (), 96)).generated
    requests = [Request([1], GREEDY, 80, (), 96), Request([2], GREEDY, 80, ended[-1:], 96)]
    stats = pair.scheduler.run(requests)
    pair.device.close()
    assert requests[1].stop_token is not None
    learnt = pair.draft.statistics
    num_rounds = sum(learnt.num_rounds.values())
    # The round that was under way when the host found the stop token is one more.
    assert stats.num_rounds - 2 * 3 <= num_rounds <= stats.num_rounds + 1
    assert sum(learnt.num_hits.values()) == num_rounds > 10
    assert pair.mailbox.draft_figures.array[mail.NUM_PREDICTED] == num_rounds


def test_reports_of_a_gpu_that_failed_are_none() -> None:
    """The target's readings ask for them: raised there, the draft's failure would end texts that
    need no draft."""
    cuda = FakeCuda()
    device = CudaDevice(core=cuda)
    stream = device.create_stream("draft")
    source = device.allocate_pinned("source", (1, 2), np.int64)
    reports = Reports(
        device, Work(cast(Any, SimpleNamespace(launch=None)), copies_of(device)), (1, 2)
    )

    def fail() -> None:
        raise FakeCudaError("CUDA_ERROR_ILLEGAL_ADDRESS: lost")

    cuda.hold(stream.handle)
    stream.call(lambda: cuda.kernel(current_stream(), fail))
    stream.call(partial(reports.send, 1, source.address))
    cuda.release(stream.handle)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        stream.sync()
    assert reports.poll() == []
    del reports, source  # or the device's thread would wait for them
    device.close()


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("ratio", Fallback.ZERO), "--verify ratio"),
        (("coupled", Fallback.JIT), "--fallback jit"),
        (("coupled", Fallback.LOOKUP), "--fallback lookup"),
    ],
)
def test_what_needs_the_host_is_refused_by_name(arguments, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        require_supported(*arguments)


def test_a_draft_on_the_host_may_look_tokens_up() -> None:
    require_supported("coupled", Fallback.ZERO)
    require_supported("coupled", Fallback.LOOKUP, draft_on_gpu=False)
    with pytest.raises(UsageError, match="use --fallback lookup or zero"):
        require_supported("coupled", Fallback.JIT, draft_on_gpu=False)


def test_a_plan_with_another_fallback_is_refused(work) -> None:
    """Taken for ``zero``, a policy would never learn that its plan was not followed."""
    pair = ResidentPair(HostDevice(), "ssd", work=work)
    with pytest.raises(UsageError, match="--fallback jit"):
        pair.draft.prepare(RoundPlan("ssd", 2, 2, Fallback.JIT))
    pair.device.close()


def test_more_branches_than_built_are_refused(work) -> None:
    device, limits = HostDevice(), Limits(40, 1, 2, 3)
    session = HostDeviceSession(ToySession(TARGET, tables(0)[0], limits, device))
    mailbox = Exchange(device, None, 1, 2, vocab_size=12)
    with pytest.raises(CapacityError, match="--max-branches 4"):
        ResidentDraft(
            session,
            device,
            work,
            mailbox,
            num_draft=2,
            num_branches=4,
            statistics=OutcomeStatistics(2, 4),
        )
