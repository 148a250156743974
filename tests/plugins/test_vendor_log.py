"""What TensorRT says, in words for people, and on whose behalf."""

from __future__ import annotations

import threading

import pytest

from plugins.vendor_log import Messages, logger_for, readable
from tests.export.tensorrt.fake_compiler import FakeCompiler, Severity

SAID = {
    "IBuilder::build: Error Code 4: API Usage Error (Network must have at least one output. "
    "In validate at /_src/optimizer/api/network.cpp:3810)": "Network must have at least one output",
    "Error Code 10: Internal Error (no kernel)": "no kernel",
    "a line\nand another": "a line and another",
    "IBuilder::build: Error Code 1: Myelin ([graph.h:1295: attach] MyelinCheckException: "
    "ops.cpp:59: CHECK(op->is_decomposable()) failed. Attention has no kernel.)": (
        "Attention has no kernel."
    ),
    "IBuilder::build: Error Code 1: Myelin ([graph.h:1295: attach] MyelinCheckException: "
    "layout.cpp:2006: CHECK(op->layouts().size() > 1) failed.  In compileGraph at "
    "/_src/codeGenerator.cpp:2012)": "CHECK(op->layouts().size() > 1) failed",
    "[macros.cpp::str::132] Error Code 2: OutOfMemory (Requested size was 1073859488 bytes.)": (
        "out of memory: Requested size was 1073859488 bytes."
    ),
    "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (In ScopedCudaStream at "
    "/_src/common/cudaResources.cpp:25 (cudaError 35: CUDA driver version is insufficient))": (
        "cudaError 35: CUDA driver version is insufficient"
    ),
    "Cannot compile for target(s) sm75": "Cannot compile for target(s) sm75",
}


@pytest.mark.parametrize(("message", "words"), SAID.items())
def test_a_message_is_one_line_without_places_in_a_source(message: str, words: str) -> None:
    assert readable(message) == words


def test_the_first_error_is_the_reason_and_warnings_are_none() -> None:
    trt = FakeCompiler()
    logger, messages = logger_for(trt)
    assert messages.reason == "no reason given"
    logger.log(Severity.WARNING, "Make sure input tokens has Int64 binding.")
    logger.log(Severity.ERROR, "the cause")
    logger.log(Severity.INTERNAL_ERROR, "its consequence")
    assert messages.reason == "the cause"
    messages.clear()
    assert messages.errors == []


def test_a_module_has_one_logger_for_good() -> None:
    """TensorRT keeps the first it is given: what a second one waited for would go to the first."""
    trt = FakeCompiler()
    assert logger_for(trt) is logger_for(trt)
    assert logger_for(FakeCompiler()) is not logger_for(trt)


def test_engines_on_two_threads_each_hear_their_own_reason() -> None:
    messages = Messages()
    messages.add("mine")
    other = threading.Thread(target=lambda: messages.add("yours"))
    other.start()
    other.join()
    assert (messages.errors, messages.errors_here) == (["mine", "yours"], ["mine"])
    messages.clear_here()
    assert messages.errors == ["yours"]
    assert messages.errors_here == []
    # Something was said, by a thread of TensorRT's own perhaps: better than nothing.
    assert messages.reason_here == "yours"


def test_a_server_that_fails_for_ever_keeps_the_last_errors_only() -> None:
    messages = Messages()
    for number in range(1000):
        messages.add(f"error {number}")
    assert len(messages.errors) == 256
    assert messages.errors[-1] == "error 999"
