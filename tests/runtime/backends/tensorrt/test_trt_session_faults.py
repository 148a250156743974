"""Every answer of TensorRT that means no: the error says the call, the reason and the remedy."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.errors import BackendError, DeviceError
from runtime.backends.api import CallShape
from runtime.backends.tensorrt.session import TensorRtSession
from tests.helpers.fake_tensorrt_toy import array_at
from tests.helpers.tensorrt_sessions import Bench, stream_of, view

SAYS = "IExecutionContext::call: Error Code 1: Cuda Runtime (the words. In f at /_src/f.cpp:12)"


def run_one(session: TensorRtSession) -> None:
    """Prepare and enqueue a call of one token, in work."""
    step = session.prepare(CallShape(0, 1, 1, 1))
    view(step.mask)[...] = True
    step.enqueue()


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("Runtime", None),
        ("deserialize_cuda_engine", None),
        ("create_runtime_config", None),
    ],
)
def test_loading_fails_with_the_call_and_the_reason(bench: Bench, call: str, value: Any) -> None:
    session = bench.session()
    bench.trt.fail(call, value, SAYS)
    with pytest.raises(BackendError, match=r"target engine failed on tensorrt 11.*: the words; "):
        session.load()


@pytest.mark.parametrize(
    ("call", "value", "said"),
    [
        ("create_execution_context", None, "create_execution_context"),
        ("set_device_memory", None, r"set_device_memory\(\d+ bytes\)"),
        ("set_optimization_profile_async", False, r"set_optimization_profile_async\(0\)"),
        ("set_input_shape", False, r"set_input_shape\(tokens, \[1, 1\]\)"),
        ("infer_shapes", ["mask"], "infer_shapes, which lacks mask,"),
        ("infer_shapes", RuntimeError, "infer_shapes"),
        ("set_tensor_address", False, r"set_tensor_address\(tokens, 0x"),
        ("execute_async_v3", False, r"execute_async_v3 \(1 x 1 tokens with 1 logits at 176 rows"),
    ],
)
def test_a_call_fails_with_its_name_and_the_reason(
    bench: Bench, call: str, value: Any, said: str
) -> None:
    """An answer that is not looked at gives zeros, or the tokens of the call before."""
    session = bench.open()
    bench.trt.fail(call, value, SAYS)
    with pytest.raises(BackendError, match=f"^{said}.*of the target engine failed.*: the words; "):
        stream_of(session).call(lambda: run_one(session))
    # The next call finds nothing in its way.
    stream_of(session).call(lambda: run_one(session))


def test_a_refused_argument_is_an_error_of_ours(bench: Bench) -> None:
    """The bindings raise for some of what TensorRT refuses."""
    session = bench.open()
    bench.trt.fail("execute_async_v3", TypeError)
    with pytest.raises(BackendError, match=r"execute_async_v3.*as the bindings raise"):
        stream_of(session).call(lambda: run_one(session))


def test_too_little_memory_has_a_remedy_of_its_own(bench: Bench) -> None:
    session = bench.open()
    says = "Error Code 2: OutOfMemory (Requested size was 7 bytes.)"
    bench.trt.fail("create_execution_context", None, says)
    with pytest.raises(BackendError, match=r"out of memory: Requested.*smaller limits"):
        stream_of(session).call(lambda: run_one(session))


def test_a_failure_without_words_says_so(bench: Bench) -> None:
    session = bench.open()
    bench.trt.fail("execute_async_v3")
    with pytest.raises(BackendError, match="no reason given; open the bundle again"):
        stream_of(session).call(lambda: run_one(session))


def test_words_of_an_earlier_failure_are_not_repeated(bench: Bench) -> None:
    session = bench.open()
    bench.trt.fail("set_input_shape", False, SAYS)
    with pytest.raises(BackendError):
        stream_of(session).call(lambda: run_one(session))
    bench.trt.fail("execute_async_v3")
    with pytest.raises(BackendError, match="no reason given"):
        stream_of(session).call(lambda: run_one(session))


def test_what_a_layer_says_comes_first(bench: Bench) -> None:
    """TensorRT has no more than a code for it."""

    def launch(*_: object) -> None:
        raise DeviceError("cuLaunchKernel of verify failed")

    session = bench.open(launcher=lambda _capability: launch)
    with pytest.raises(BackendError, match="cuLaunchKernel of verify failed"):
        stream_of(session).call(lambda: run_one(session))


def test_the_reason_is_that_of_the_own_thread(bench: Bench) -> None:
    """Two engines have one logger, and may fail at once."""
    first, second = bench.open(), bench.open()
    bench.trt.fail("execute_async_v3", False, SAYS)
    with pytest.raises(BackendError, match="the words"):
        stream_of(first).call(lambda: run_one(first))
    says = SAYS.replace("the words", "other words")
    bench.trt.fail("execute_async_v3", False, says)
    with pytest.raises(BackendError, match="other words"):
        stream_of(second).call(lambda: run_one(second))


def test_a_failed_call_is_not_warm_and_its_caches_are_zeroed_by_a_reset(bench: Bench) -> None:
    """What it left may be NaN, which would poison masked rows."""
    session = bench.open()
    buffer = session.kv_buffer
    memory = array_at(buffer.address, (buffer.nbytes,), np.dtype(np.uint8))
    memory[...] = 0xFF
    stream_of(session).call(session.reset_rows)
    assert memory.all(), "a reset alone leaves the caches as they are"
    bench.trt.fail("execute_async_v3", False, SAYS)
    with pytest.raises(BackendError):
        stream_of(session).call(lambda: run_one(session))
    step = stream_of(session).call(lambda: session.prepare(CallShape(0, 1, 1, 1)))
    assert not step.is_warm
    stream_of(session).call(session.reset_rows)
    stream_of(session).sync()
    assert not memory.any()


def test_work_that_fails_fails_its_stream(bench: Bench) -> None:
    session = bench.open()
    stream = stream_of(session)
    bench.trt.fail("execute_async_v3", False, SAYS)
    stream.launch(lambda: run_one(session))
    with pytest.raises(BackendError, match="the words"):
        stream.sync()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("cuda_graph_strategy", "setting cuda_graph_strategy to WHOLE_GRAPH_CAPTURE"),
        (
            "dynamic_shapes_kernel_specialization_strategy",
            "setting dynamic_shapes_kernel_specialization_strategy to EAGER",
        ),
        ("set_runtime_cache", "set_runtime_cache"),
    ],
)
def test_what_only_tensorrt_rtx_has_is_checked_too(rtx: Bench, call: str, said: str) -> None:
    """The setters of properties lose what the call behind them answers."""
    session = rtx.session()
    rtx.trt.fail(call, False, SAYS)
    with pytest.raises(BackendError, match=f"{said} of the target engine failed.*: the words; "):
        session.load()


@pytest.mark.parametrize("load", [True, False])
def test_a_session_that_failed_to_load_can_be_closed(bench: Bench, load: bool) -> None:
    session = bench.session()
    if load:
        bench.trt.fail("create_runtime_config", None)
        with pytest.raises(BackendError):
            session.load()
    session.close()


def test_no_memory_for_the_caches_is_said_before_any_call(bench: Bench) -> None:
    session = bench.session()
    bench.cuda.memory_free[0] = 1000
    with pytest.raises(DeviceError, match=r"no memory for buffer 'target.kv'"):
        session.load()
    bench.device().close()
    assert gone(bench) == ["~Config", "~Engine", "~Runtime"]


def gone(bench: Bench) -> list[str]:
    return [name for name in bench.trt.names() if name.startswith("~")]


@pytest.mark.parametrize(
    ("call", "order"),
    [
        ("create_runtime_config", ["~Engine", "~Runtime"]),
        ("create_runtime_cache", ["~Config", "~Engine", "~Runtime"]),
        ("set_runtime_cache", ["~Config", "~RuntimeCache", "~Engine", "~Runtime"]),
    ],
)
def test_what_was_made_before_a_failure_goes_in_order(
    rtx: Bench, call: str, order: list[str]
) -> None:
    session = rtx.session()
    rtx.trt.fail(call, None if call.startswith("create") else False, SAYS)
    with pytest.raises(BackendError):
        session.load()
    gc.collect()  # the error's traceback
    assert gone(rtx) == order


@pytest.mark.parametrize(
    "outside",
    [
        lambda session: session.prepare(CallShape(0, 1, 1, 1)),
        lambda session: session.warm_up([]),
        lambda session: session.copy_slot(0, 1, slice(0, 4)),
    ],
)
def test_calls_outside_work_are_refused(
    bench: Bench, outside: Callable[[TensorRtSession], object]
) -> None:
    """On the host thread another GPU may be current, or none."""
    session = bench.open()
    with pytest.raises(DeviceError, match=re.escape("work of a CUDA stream")):
        outside(session)
