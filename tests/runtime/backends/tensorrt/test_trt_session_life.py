"""Captures, warm-up, memory and the end of sessions of compiled engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.errors import BackendError
from runtime.backends.api import CallShape
from runtime.backends.tensorrt.memory import planned
from runtime.device.cuda import Enqueue
from tests.helpers.fake_cuda import LAZY
from tests.helpers.fake_tensorrt_toy import array_at
from tests.helpers.tensorrt_sessions import Bench, feed, stream_of, view

BOTH = pytest.mark.parametrize("module", ["tensorrt", "tensorrt_rtx"])


def test_a_call_that_has_run_is_captured_and_replayed(bench: Bench) -> None:
    session = bench.open()
    stream = stream_of(session)
    step = stream.call(lambda: feed(session, [3]))
    stream.call(step.enqueue)
    stream.sync()
    expected = view(step.logits).copy()
    assert session.is_capturable
    stream.begin_capture()
    stream.launch(Enqueue(step.enqueue))
    graph = stream.end_capture()
    view(step.logits)[...] = 0
    bench.trt.calls.clear()
    graph.launch(stream)
    stream.sync()
    assert bench.trt.names() == []
    np.testing.assert_array_equal(view(step.logits), expected)


@pytest.mark.parametrize(
    ("tokens", "runs_first", "message"),
    [([3], False, "it was never run"), ([3] * 16, True, "calls of a prompt share a context")],
)
def test_a_capture_that_would_be_wrong_is_refused_by_name(
    bench: Bench, tokens: list[int], runs_first: bool, message: str
) -> None:
    """TensorRT does what is left to do for a shape in its first run, which no graph may hold."""
    session = bench.open()
    stream = stream_of(session)
    step = stream.call(lambda: feed(session, tokens))
    if runs_first:
        stream.call(step.enqueue)
    stream.begin_capture()
    stream.launch(Enqueue(step.enqueue))
    with pytest.raises(BackendError, match=f"cannot be captured: {message}"):
        stream.end_capture()
    stream.call(step.enqueue)


def test_tensorrt_rtx_captures_by_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "tensorrt_rtx")
    session = bench.open()
    assert not session.is_capturable
    said = {call.name: call.arguments for call in bench.trt.calls}
    assert said["cuda_graph_strategy"][0].name == "WHOLE_GRAPH_CAPTURE"
    # LAZY would change an engine's rounding in the middle of a text.
    assert said["dynamic_shapes_kernel_specialization_strategy"][0].name == "EAGER"
    bench.close()


def test_a_warm_up_runs_each_call_and_leaves_no_trace(bench: Bench) -> None:
    session = bench.open()
    stream, shapes = stream_of(session), [CallShape(0, 3, 1, 1), CallShape(0, 3, 5, 5)]
    steps = stream.call(lambda: [session.prepare(shape) for shape in shapes])
    inputs = ("tokens", "positions", "write_at", "logit_rows", "num_draft")
    for step in steps:
        for name in inputs:
            view(getattr(step, name))[...] = 99  # an id that no table has
        view(step.mask)[...] = False
    stream.call(lambda: session.warm_up(shapes))
    stream.sync()
    assert view(steps[-1].mask).all()
    assert not any(view(getattr(step, name)).any() for step in steps for name in inputs)
    assert bench.trt.names("execute_async_v3") == ["execute_async_v3"] * 2
    caches = array_at(session.kv_buffer.address, (session.kv_buffer.nbytes,), np.dtype(np.uint8))
    assert not caches.any()
    for shape in shapes:
        assert stream.call(lambda shape=shape: session.prepare(shape)).is_warm


def test_the_engines_own_verdict_comes_out_of_its_plugin_layer(bench: Bench) -> None:
    session = bench.open()
    stream = stream_of(session)
    step = stream.call(lambda: feed(session, [3]))
    stream.call(step.enqueue)
    stream.sync()
    assert view(step.outputs["accepted"]).tolist() == [0]
    assert view(step.outputs["next"]).tolist() == [int(view(step.logits)[0, 0].argmax())]


@BOTH
def test_everything_is_closed_in_order_once_the_gpu_is_idle(both: Bench) -> None:
    """TensorRT's objects point at each other and own none of them; a context in use is memory in
    use."""
    both.cuda.order = LAZY
    session = both.open()
    stream = stream_of(session)
    steps = [stream.call(lambda: feed(session, [3])), stream.call(lambda: feed(session, [3] * 16))]
    for step in steps:
        stream.call(step.enqueue)
    session.close()
    session.close()
    for device in both.devices.values():
        device.close()
    gone = [name for name in both.trt.names() if name.startswith("~")]
    cache = ["~RuntimeCache"] if both.trt.is_rtx else []
    assert gone == ["~Context", "~Context", "~Config", *cache, "~Engine", "~Runtime"]
    with pytest.raises(BackendError, match="or was closed; open the bundle again"):
        steps[0].enqueue()


def test_a_session_must_be_loaded_first(bench: Bench) -> None:
    session = bench.session()
    with pytest.raises(BackendError, match="the target engine is not loaded"):
        stream_of(session).call(lambda: session.prepare(CallShape(0, 1, 1, 1)))


def test_closing_waits_for_no_stream_that_was_given_up(bench: Bench) -> None:
    """A target may hang behind its draft for ever: its session must go all the same."""
    session = bench.open()
    stream = stream_of(session)
    step = stream.call(lambda: feed(session, [3]))
    stream.close()
    session.close()
    bench.device().close()
    with pytest.raises(BackendError, match="was closed"):
        step.enqueue()
    assert "~Runtime" in bench.trt.names()


def test_a_session_that_outlives_its_device_lets_go_all_the_same(bench: Bench) -> None:
    session = bench.open()
    stream_of(session).call(lambda: feed(session, [3]).enqueue())
    bench.device().close()
    session.close()
    gone = [name for name in bench.trt.names() if name.startswith("~")]
    assert gone == ["~Context", "~Config", "~Engine", "~Runtime"]


def test_a_session_goes_on_on_another_stream_of_its_gpu(bench: Bench) -> None:
    session = bench.open()
    first = stream_of(session)
    step = first.call(lambda: feed(session, [3]))
    first.call(step.enqueue)
    first.sync()
    expected = view(step.logits).copy()
    first.close()
    second = bench.device().create_stream("in its place")
    view(step.logits)[...] = 0
    second.call(step.enqueue)
    second.sync()
    np.testing.assert_array_equal(view(step.logits), expected)


@BOTH
def test_the_memory_is_stated_before_and_after_loading(both: Bench) -> None:
    session = both.session(num_slots=2)
    before = planned(session.manifest, num_slots=2)
    assert before.activations is None
    free = both.cuda.memory_free[0]
    session.load()
    after = session.memory
    assert after.activations
    assert (after.caches, after.borders) == (before.caches, before.borders)
    assert before.weights == session.manifest.files[0].size
    # Weights are TensorRT's own; everything else is ours and was allocated by load.
    assert free - both.cuda.memory_free[0] == after.total - after.weights
