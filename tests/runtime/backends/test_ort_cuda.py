"""Engines on ONNX Runtime's CUDA provider, over a simulated GPU that computes with the CPU's."""

from __future__ import annotations

import random
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest

from engines.errors import BackendError, CapacityError
from plugins.ort.library import SWITCH
from runtime.backends.api import CallShape
from runtime.backends.blocking import BlockingSession
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.workers.prefill import score_text
from runtime.workers.probe import probe_invariance
from tests.helpers.fake_cuda import EAGER, LAZY, FakeCuda
from tests.helpers.fake_ort_gpu import FakeInferenceSession, FakeOrt
from tests.helpers.ort_sessions import opened
from tests.helpers.tiny_bundle import open_session, tiny_bundle

ORDERS: list[Any] = [EAGER, LAZY, random.Random(7)]


def on_stream(stream: Any, work: Any) -> Any:
    found: list[Any] = []
    stream.launch(lambda: found.append(work()), label="test")
    stream.sync()
    return found[0]


@pytest.mark.parametrize("order", ORDERS, ids=["eager", "lazy", "random"])
def test_texts_score_as_on_the_cpu_over_growing_buckets(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address, a lost row at growth, or an input that is read too late would show."""
    monkeypatch.setenv(SWITCH, "off")  # what stands for the GPU computes with ONNX Runtime's
    bundle = tiny_bundle()
    tokens = np.random.default_rng(3).integers(0, 320, 150).tolist()
    with opened(FakeCuda(order)) as (session, device, stream, _):
        session.load()
        host = BlockingSession(session, device, num_slots=3)
        layout = SlotLayout(bundle.target.kv, 0)
        found = on_stream(stream, lambda: score_text(host, layout, tokens))
        assert session.num_rows > bundle.target.lengths[0]
    cpu = HostDevice()
    plain = open_session(bundle, cpu)
    assert np.array_equal(found, score_text(plain, layout, tokens))
    cpu.close()


def test_the_probe_passes_and_finds_a_session_exact() -> None:
    with opened(FakeCuda(EAGER)) as (session, device, stream, _):
        session.load()
        host = BlockingSession(session, device, num_slots=3)
        assert on_stream(stream, lambda: probe_invariance(host, 5, 3)).min_tokens == 1


def test_runs_go_to_our_stream_wait_for_nothing_and_write_caches_in_place() -> None:
    with opened(FakeCuda(LAZY)) as (session, _, stream, ort):
        session.load()
        num_syncs = len(ort.cuda.calls_of("sync")) if ort.cuda.calls is not None else 0
        step = on_stream(stream, lambda: session.prepare(CallShape(1, 2, 3, 3)))
        ort.cuda.hold(stream.handle)
        stream.launch(step.enqueue)
        stream.call(lambda: None)  # the thread has enqueued; the GPU has not begun
        run = ort.runs[-1]
        assert run.stream == stream.handle
        assert run.entries == {"disable_synchronize_execution_providers": "1"}
        ort.cuda.release(stream.handle)
        stream.sync()
        options = ort.sessions[0].options
        assert options["user_compute_stream"] == str(stream.handle)
        assert (options["use_tf32"], options["enable_cuda_graph"]) == ("0", "0")
        binding = step.binding.tensors
        for layer in range(2):
            for part in ("key", "value"):
                name = f"kv.{layer}.{part}"
                assert binding[name] == binding[f"{name}.next"]
        assert binding["kv.0.key"][2] == session._caches.address(0, 1)
        assert num_syncs == 0


def test_an_input_keeps_what_was_written_over_growth_and_other_calls() -> None:
    with opened(FakeCuda(EAGER), "draft") as (session, _, stream, _):
        session.load()
        shape = CallShape(0, 2, 6, 6, copy=1)

        def addresses() -> tuple[list[int], int]:
            step = session.prepare(shape)
            small = [step.tokens, step.positions, step.write_at, step.logit_rows, step.num_draft]
            return [tensor.address for tensor in small], step.logits.address

        before = on_stream(stream, addresses)
        on_stream(stream, lambda: session.prepare(CallShape(0, 3, 6, 6, copy=1)))
        on_stream(stream, lambda: session.bind_rows(session.num_rows + 1))
        assert on_stream(stream, addresses) == before
        assert len(set(before[0])) == 5
        other = on_stream(stream, lambda: session.prepare(CallShape(0, 2, 6, 6, copy=2)))
        assert other.logits.address != before[1]


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        (CallShape(0, 1, 2, 2, copy=1), "copy 1, the session was loaded with 1"),
        (CallShape(0, 3, 100, 100), "3 x 100 tokens with 100 logits does not fit"),
    ],
)
def test_calls_beyond_what_was_allocated_are_refused(shape: CallShape, match: str) -> None:
    with opened(FakeCuda(EAGER)) as (session, _, stream, _):
        session.load()
        with pytest.raises(CapacityError, match=match):
            on_stream(stream, partial(session.prepare, shape))


def test_a_slot_is_copied_head_by_head() -> None:
    with opened(FakeCuda(EAGER)) as (session, device, stream, ort):
        session.load()
        caches = session.caches
        block = ort.cuda.buffer_at(caches[0].address, 1)
        whole = block.bytes.view(np.float32)
        whole[:] = np.arange(whole.size)
        on_stream(stream, lambda: session.copy_slot(0, 2, slice(3, 9)))
        for cache in caches:
            start = (cache.address - block.handle) // 4
            array = whole[start : start + int(np.prod(cache.shape))].reshape(cache.shape)
            assert np.array_equal(array[2, :, 3:9], array[0, :, 3:9])
            assert not np.array_equal(array[2, :, 2], array[0, :, 2])
            assert not np.array_equal(array[2, :, 9], array[0, :, 9])
        assert device.name == "cuda:0"


def test_an_engine_whose_stream_was_given_up_goes_on_in_another() -> None:
    """Its steps stay; on the old stream they would run beside everything else."""
    with opened(FakeCuda(EAGER)) as (session, device, stream, ort):
        session.load()
        step = on_stream(stream, lambda: session.prepare(CallShape(0, 1, 5, 5)))
        on_stream(stream, step.enqueue)
        stream.close()
        again = device.create_stream("again")
        on_stream(again, step.enqueue)
        on_stream(again, step.enqueue)
        assert [run.stream for run in ort.runs[1:]] == [stream.handle, again.handle, again.handle]
        assert len(ort.sessions) == 2
        assert ort.sessions[1].options["user_compute_stream"] == str(again.handle)


class CountingOrt(FakeOrt):
    """Counts the engines that are alive when one is opened: each has all weights on the GPU."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__(cuda)
        self.alive: WeakSet[FakeInferenceSession] = WeakSet()
        self.alive_at_opening: list[int] = []
        self.is_out_of_memory = False

    def InferenceSession(self, *arguments: Any, **options: Any) -> FakeInferenceSession:  # noqa: N802
        self.alive_at_opening.append(len(self.alive))
        if self.is_out_of_memory:
            raise RuntimeError("CUDA failure 2: out of memory")
        made = super().InferenceSession(*arguments, **options)
        self.sessions.clear()  # which would keep it alive
        self.alive.add(made)
        return made


def test_the_old_engine_is_gone_before_its_successor_is_opened() -> None:
    """Two sets of weights do not fit a GPU that one fills by half. A step that has not run since
    kept the old engine, too."""
    ort = CountingOrt(FakeCuda(EAGER))
    with opened(ort.cuda, ort=ort) as (session, device, stream, _):
        session.load()
        shapes = [CallShape(0, 1, 5, 5), CallShape(0, 2, 5, 5)]
        steps = on_stream(stream, lambda: [session.prepare(shape) for shape in shapes])
        for step in steps:
            on_stream(stream, step.enqueue)
        stream.close()
        again = device.create_stream("again")
        on_stream(again, steps[0].enqueue)
        assert ort.alive_at_opening == [0, 0]


def test_a_step_or_an_error_that_somebody_keeps_does_not_keep_a_closed_engine() -> None:
    """The engine would be freed by whichever thread lets go of them, or never."""
    ort = CountingOrt(FakeCuda(EAGER))
    with opened(ort.cuda, ort=ort) as (session, device, stream, _):
        session.load()
        step = on_stream(stream, lambda: session.prepare(CallShape(0, 1, 5, 5)))
        on_stream(stream, step.enqueue)
        ort.fails_at_run = True
        with pytest.raises(BackendError, match="CUBLAS") as kept:
            stream.call(step.enqueue)
        session.close()
        with pytest.raises(BackendError, match="target engine was closed"):
            stream.call(step.enqueue)
        device.close()
        assert len(ort.alive) == 0
        assert kept.value.__cause__ is not None


def test_an_engine_that_cannot_be_opened_anew_says_so_each_time() -> None:
    """And does not run on a stream that is gone."""
    ort = CountingOrt(FakeCuda(EAGER))
    with opened(ort.cuda, ort=ort) as (session, device, stream, _):
        session.load()
        step = on_stream(stream, lambda: session.prepare(CallShape(0, 1, 5, 5)))
        stream.close()
        ort.is_out_of_memory = True
        for name in ("again", "and again"):
            again = device.create_stream(name)
            again.launch(step.enqueue)
            with pytest.raises(BackendError, match=r"cannot load .*out of memory"):
                again.sync()


def test_a_failed_run_names_the_call() -> None:
    ort = FakeOrt(FakeCuda(EAGER))
    with opened(ort.cuda, ort=ort) as (session, _, stream, _):
        session.load()
        ort.fails_at_run = True
        stream.launch(session.prepare(CallShape(0, 2, 5, 5)).enqueue)
        with pytest.raises(BackendError, match=r"cuda:0 at 2 x 5 tokens, 64 rows: .*CUBLAS"):
            stream.sync()
