"""Our layers are run by the kernels of the engine that the calling thread enqueues, or not."""

from __future__ import annotations

import threading

import pytest

from engines.errors import BackendError
from engines.manifest import PlanFacts
from runtime.backends.tensorrt import layers
from tests.plugins.fake_tensorrt import DataType, Desc, FakeTensorRT


def enqueue(trt: FakeTensorRT) -> None:
    """A Verify layer of one row, as an engine enqueues it."""
    creator = trt.get_plugin_registry().get_creator("Verify", "1", "ssd")
    layer = creator.create_plugin("layer", [], trt.TensorRTPhase.BUILD)
    ids = Desc((1,), DataType.INT64)
    inputs = [Desc((1, 1, 4), DataType.FLOAT), Desc((1, 0), DataType.INT64), ids]
    layer.enqueue(inputs, [ids, ids], [0, 0, 0], [0, 0], 0, 0)


@pytest.fixture
def trt() -> FakeTensorRT:
    made = FakeTensorRT()
    plan = PlanFacts("engine.plan", "tensorrt 11", ("9.0",), (), ("ssd::Verify@1",))
    layers.register(made, plan)
    return made


def test_a_layer_is_run_by_what_is_running_and_by_nothing_afterwards(trt: FakeTensorRT) -> None:
    used: list[str] = []
    with layers.running(lambda *_: used.append("outer")):
        enqueue(trt)
        with layers.running(lambda *_: used.append("inner")):
            enqueue(trt)
        enqueue(trt)
    assert used == ["outer", "inner", "outer"]
    with pytest.raises(BackendError, match="a thread that runs no engine"):
        enqueue(trt)


def test_another_thread_does_not_get_this_ones_kernels(trt: FakeTensorRT) -> None:
    """They are loaded on one GPU, and the other thread may be another's."""
    errors: list[str] = []

    def other() -> None:
        try:
            enqueue(trt)
        except BackendError as error:
            errors.append(str(error))

    with layers.running(lambda *_: None):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "ssd::Verify@1 was enqueued by a thread that runs no engine" in errors[0]
