"""Sessions of compiled engines: which calls TensorRT gets, in which order, on which thread."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError, UsageError
from engines.manifest import DRAFT, TARGET, Limits
from engines.profiles import length_buckets
from runtime.backends.api import CallShape
from runtime.backends.tensorrt.session import attended_lengths
from runtime.backends.tensorrt.step import TensorRtStep
from tests.helpers.fake_tensorrt_toy import SimulatedLauncher
from tests.helpers.tensorrt_sessions import Bench, feed, stream_of

BOTH = pytest.mark.parametrize("module", ["tensorrt", "tensorrt_rtx"])


@BOTH
def test_a_call_is_bound_once_and_then_only_executed(both: Bench) -> None:
    """Everything but one call of TensorRT is time between two kernels."""
    session = both.open()
    steps: list[TensorRtStep] = []

    def first() -> None:
        steps.append(feed(session, [3]))

    stream_of(session).call(first)
    bound = both.trt.names()
    both.trt.calls.clear()
    for _ in range(3):
        stream_of(session).call(steps[0].enqueue)
    assert both.trt.names() == ["execute_async_v3"] * 3
    order = [
        "create_runtime_config",
        "create_execution_context",
        "set_device_memory",
        "set_optimization_profile_async",
        "set_input_shape",
        "infer_shapes",
        "set_tensor_address",
    ]
    assert [name for name in dict.fromkeys(bound) if name in order] == order


@BOTH
def test_what_tensorrt_does_is_done_on_the_streams_own_thread(both: Bench) -> None:
    """Contexts are not for two threads, and each thread has a GPU of its own."""
    session = both.open()
    stream_of(session).call(lambda: feed(session, [3]).enqueue())
    stream_of(session).sync()
    assert {call.thread for call in both.trt.calls} == {"stream target 0"}


def test_engines_of_two_gpus_run_with_their_own_gpu_and_kernels(tmp_path: Path) -> None:
    """A registry has one launcher for the process, and kernels belong to the GPU that loaded them;
    TensorRT takes whatever GPU the thread has."""
    bench = Bench(tmp_path, num_gpus=2)
    used: list[tuple[int, int]] = []

    def launcher_of(gpu: int) -> object:
        simulated = SimulatedLauncher(bench.cuda)

        def launch(layer, inputs, outputs, stream, workspace) -> None:
            used.append((gpu, bench.cuda.stream_of(stream).ordinal))
            simulated(layer, inputs, outputs, stream, workspace)

        return launch

    draft = bench.open(DRAFT, gpu=1, launcher=lambda _: launcher_of(1))
    target = bench.open(TARGET, gpu=0, launcher=lambda _: launcher_of(0))
    for session in (draft, target, draft):
        stream_of(session).call(lambda session=session: feed(session, [3]).enqueue())
    assert used == [(1, 1), (0, 0), (1, 1)]
    bench.close()
    assert bench.cuda.misuses == []


def test_the_kernels_of_our_layers_are_loaded_for_the_gpu_on_its_thread(bench: Bench) -> None:
    found = []

    def load(capability: str) -> SimulatedLauncher:
        found.append((capability, bench.cuda.current))
        return SimulatedLauncher(bench.cuda)

    bench.open(launcher=load)
    assert found == [("9.0", 0)]


@pytest.mark.parametrize(
    ("role", "shape", "profile"),
    [
        (TARGET, CallShape(0, 3, 1, 1), "step"),
        (TARGET, CallShape(0, 1, 2, 2), "step"),
        (TARGET, CallShape(0, 2, 5, 5), "verify"),
        (TARGET, CallShape(2, 1, 64, 1), "prompt"),
        (DRAFT, CallShape(0, 1, 2, 1), "step"),
        (DRAFT, CallShape(0, 3, 6, 6, copy=2), "branch"),
        (DRAFT, CallShape(1, 1, 16, 16), "prompt"),
    ],
)
def test_the_profile_is_picked_by_the_calls_shape(
    bench: Bench, role: str, shape: CallShape, profile: str
) -> None:
    session = bench.open(role)
    step = stream_of(session).call(lambda: session.prepare(shape))
    plan = session.manifest.plan
    assert plan is not None
    assert plan.profiles[step.profile].name == profile
    picked = [call for call in bench.trt.calls if call.name == "set_optimization_profile_async"]
    assert picked[-1].arguments == (step.profile,)


def test_a_call_that_no_profile_holds_is_refused_with_what_was_compiled(bench: Bench) -> None:
    session = bench.open()
    with pytest.raises(
        CapacityError, match=r"T = 9 tokens.*verify \(B 1 to 3, T 2 to 5.*--num-draft"
    ):
        stream_of(session).call(lambda: session.prepare(CallShape(0, 1, 9, 9)))
    with pytest.raises(CapacityError, match="slots 2 to 4, the session was loaded with 3"):
        stream_of(session).call(lambda: session.prepare(CallShape(2, 3, 1, 1)))


def test_more_texts_than_the_engine_was_built_for_are_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match=r"4 texts at once.*1 to 3.*--max-batch"):
        bench.open(num_slots=4)


@BOTH
def test_a_cache_and_its_update_are_bound_to_one_address(both: Bench) -> None:
    session = both.open()
    stream_of(session).call(lambda: session.prepare(CallShape(1, 1, 1, 1)))
    bound = {
        call.arguments[0]: call.arguments[1]
        for call in both.trt.calls
        if call.name == "set_tensor_address"
    }
    kv = session.manifest.kv
    slot_bytes = kv.num_kv_heads * kv.rows * kv.head_dim * kv.dtype.itemsize
    keys, values = session.caches
    assert bound["kv.0.key"] == bound["kv.0.key.next"] == keys.address + slot_bytes
    assert bound["kv.0.value"] == bound["kv.0.value.next"] == values.address + slot_bytes


def test_all_contexts_compute_in_one_memory(bench: Bench) -> None:
    session = bench.open()
    for shape in (CallShape(0, 1, 1, 1), CallShape(0, 3, 5, 5), CallShape(0, 1, 64, 1)):
        stream_of(session).call(lambda shape=shape: session.prepare(shape))
    given = [call.arguments for call in bench.trt.calls if call.name == "set_device_memory"]
    assert len(given) == 3
    assert set(given) == {(session._open.activations.address, session.memory.activations)}


def test_calls_of_a_prompt_share_a_context_and_are_bound_when_they_differ(bench: Bench) -> None:
    """Prompts come at every slot in four widths: a context each would take seconds to make."""
    session = bench.open()
    stream = stream_of(session)

    def two() -> tuple[TensorRtStep, TensorRtStep]:
        return feed(session, [1] * 16), feed(session, [2] * 32, slot=1)

    first, second = stream.call(two)
    assert bench.trt.names("create_execution_context") == ["create_execution_context"]
    bench.trt.calls.clear()
    for step in (second, second, first):
        stream.call(step.enqueue)
    names = bench.trt.names("execute_async_v3", "set_tensor_address")
    assert [name for name, before in zip(names, ["", *names], strict=False) if name != before] == [
        "execute_async_v3",
        "set_tensor_address",
        "execute_async_v3",
    ]
    assert "set_optimization_profile_async" not in bench.trt.names()


def test_steps_outlive_growing_rows(tmp_path: Path) -> None:
    """Contexts, and graphs captured from them, are too dear to make again for each text."""
    bench = Bench(tmp_path, limits=Limits(max_len=3000, max_batch=2, num_draft=2, max_branches=2))
    session = bench.open(num_slots=2)
    stream, shape = stream_of(session), CallShape(0, 1, 1, 1)
    first = stream.call(lambda: session.prepare(shape))
    assert session.num_rows == 512
    stream.call(lambda: session.bind_rows(513))
    assert session.num_rows >= 1024
    grown = stream.call(lambda: session.prepare(shape))
    assert (grown.mask.shape[-1], first.mask.shape[-1]) == (session.num_rows, 512)
    stream.call(session.reset_rows)
    assert stream.call(lambda: session.prepare(shape)) is first
    assert session.caches[0].shape[2] == session.manifest.kv.rows
    with pytest.raises(CapacityError, match=r"9999 cache rows needed.*--max-len"):
        session.bind_rows(9999)
    bench.close()


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ((200,), (200,)),
        ((64, 128, 200), (200,)),
        ((64, 512, 640, 832, 1088, 1360), (512, 1088, 1360)),
        ((64, 448, 512, 513), (512, 513)),
    ],
)
def test_a_gpu_attends_in_fewer_steps_than_a_cpu(
    lengths: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert attended_lengths(lengths) == kept


@given(st.integers(1, 200_000))
def test_the_attended_rows_at_least_double_and_reach_the_last(rows: int) -> None:
    """Else a long text would make contexts without end, or not fit."""
    kept = attended_lengths(length_buckets(rows))
    assert kept[-1] == rows
    assert set(kept) <= set(length_buckets(rows))
    assert all(second >= 2 * first for first, second in pairwise(kept[:-1]))
    assert all(length >= 512 for length in kept[:-1])
