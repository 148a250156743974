"""What the parts of the simulated TensorRT of `fake_tensorrt_module` share."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from engines.tensors import TensorSpec
from tests.helpers.fake_tensorrt_toy import Blueprint

if TYPE_CHECKING:
    from tests.helpers.fake_tensorrt_module import FakeTensorRt

ALIGNMENT = 256
WORKSPACE = 256


class TensorIOMode(Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(Enum):
    DEVICE = 0
    HOST = 1


class EngineStat(Enum):
    TOTAL_WEIGHTS_SIZE = 0


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class CudaGraphStrategy(Enum):
    DISABLED = 0
    WHOLE_GRAPH_CAPTURE = 1


class DynamicShapesKernelSpecializationStrategy(Enum):
    LAZY = 0
    EAGER = 1
    NONE = 2


def watch(trt: FakeTensorRt, thing: Any, name: str, *checks: Callable[[], None]) -> None:
    """Note the destruction of ``thing`` as a call, and make the checks of that moment."""

    def gone() -> None:
        trt.answer(name)
        for check in checks:
            check()

    weakref.finalize(thing, gone).atexit = False


@dataclass(eq=False)
class EngineState:
    """What an engine's Python object and its contexts share."""

    trt: FakeTensorRt
    plan: Blueprint
    layer: Any
    gpu: int
    num_contexts: int = 0
    specs: dict[str, TensorSpec] = field(init=False)
    table: np.ndarray = field(init=False)
    ids: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.specs = {spec.name: spec for spec in (*self.plan.inputs, *self.plan.outputs)}
        self.table = self.plan.logits_of
        self.ids = np.array(self.plan.ids, np.int64)

    @property
    def input_names(self) -> set[str]:
        return {spec.name for spec in self.plan.inputs}

    @property
    def activation_bytes(self) -> int:
        """For the drafted tokens on their way to Verify, and its workspace."""
        most = max(p.batch.most * p.logits.most for p in self.plan.profiles)
        return -(-8 * most // ALIGNMENT) * ALIGNMENT + WORKSPACE

    def answer(self, name: str, *arguments: Any) -> Any:
        return self.trt.answer(name, *arguments, gpu=self.gpu)

    def require_no_contexts(self) -> None:
        if self.num_contexts:
            self.trt.cuda.misuses.append("an engine was destroyed before its contexts")

    def forget_context(self, pending: list[int]) -> None:
        self.num_contexts -= 1
        if pending[0]:
            self.trt.cuda.misuses.append("a context was destroyed while it ran")


@dataclass(eq=False)
class Settings:
    """What a config said when a context was created from it."""

    allocation: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    graphs: CudaGraphStrategy = CudaGraphStrategy.DISABLED
    shapes: DynamicShapesKernelSpecializationStrategy = (
        DynamicShapesKernelSpecializationStrategy.LAZY
    )
    cache: FakeRuntimeCache | None = None


class FakeRuntimeCache:
    """``IRuntimeCache``: the shapes whose kernels were compiled, good for one kind of GPU."""

    def __init__(self, trt: FakeTensorRt) -> None:
        self.kernels: set[str] = set()
        self._trt = trt

    def serialize(self) -> bytes | None:
        if (answer := self._trt.answer("serialize")) is not None:
            return answer.value
        return json.dumps([self._trt.cuda.capability, sorted(self.kernels)]).encode()

    def deserialize(self, blob: bytes) -> bool:
        self._trt.answer("deserialize", len(blob))
        capability, kernels = json.loads(blob)
        if tuple(capability) != self._trt.cuda.capability:
            return False
        self.kernels = set(kernels)
        return True
