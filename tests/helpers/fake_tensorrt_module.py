"""A TensorRT, or TensorRT-RTX, that is simulated: the module that a session is given.

It runs the toy plans of `fake_tensorrt_toy` on the simulated CUDA, keeps every call, and lets tests
choose what the next call of a name answers. Its ways are those that the bindings of TensorRT 11.4
and TensorRT-RTX 1.7 document: refusals are false or None with a line for the logger, profiles and
alignments are held to, memory is the caller's. What the real ones leave undefined (a thread without
its GPU, an engine destroyed before its contexts) is kept in `misuses`: tests find that empty.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_tensorrt_engine import FakeEngine
from tests.helpers.fake_tensorrt_state import (
    CudaGraphStrategy,
    DynamicShapesKernelSpecializationStrategy,
    EngineStat,
    EngineState,
    ExecutionContextAllocationStrategy,
    TensorIOMode,
    TensorLocation,
    watch,
)
from tests.helpers.fake_tensorrt_toy import read_blueprint
from tests.plugins.fake_tensorrt import FakeTensorRT

HEADER_BYTES = 64


class Severity(Enum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class ILogger:
    Severity = Severity

    def __init__(self) -> None:
        self.is_constructed = True


class EngineValidity(Enum):
    VALID = 0
    SUBOPTIMAL = 1
    INVALID = 2


class EngineInvalidityDiagnostics(IntEnum):
    VERSION_MISMATCH = 1
    UNSUPPORTED_CC = 2
    OLD_CUDA_DRIVER = 4
    CUDA_ERROR = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was made; destructions are calls too."""

    thread: str
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call answers instead of its own, and what it tells the logger."""

    value: Any
    says: str


class FakeTensorRt(FakeTensorRT):
    """The module. ``name`` is tensorrt or tensorrt_rtx; only the latter has what is RTX's own."""

    ILogger = ILogger
    TensorIOMode = TensorIOMode
    TensorLocation = TensorLocation
    EngineStat = EngineStat
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def __init__(self, cuda: FakeCuda, name: str = "tensorrt", version: str = "11.4.0.106") -> None:
        super().__init__()
        self.__name__ = name
        self.__version__ = version
        self.cuda = cuda
        self.calls: list[Call] = []
        self.num_compiled = 0
        """Kernels that TensorRT-RTX would have compiled: one for each new shape."""
        self._answers: dict[str, Answer] = {}
        self._logger: Any = None
        if self.is_rtx:
            self.EngineValidity = EngineValidity
            self.EngineInvalidityDiagnostics = EngineInvalidityDiagnostics
            self.CudaGraphStrategy = CudaGraphStrategy
            self.DynamicShapesKernelSpecializationStrategy = (
                DynamicShapesKernelSpecializationStrategy
            )

    @property
    def is_rtx(self) -> bool:
        return self.__name__ == "tensorrt_rtx"

    @property
    def builder(self) -> str:
        """As plans name it."""
        return f"{self.__name__.replace('_', '-')} {self.__version__}"

    def Runtime(self, logger: Any) -> FakeRuntime:  # noqa: N802 - the name in the bindings
        assert logger.is_constructed
        # The real ones keep the first logger of a process.
        self._logger = self._logger or logger
        if (answer := self.answer("Runtime")) is not None:
            assert answer.value is None
            raise TypeError("pybind11::init(): factory function returned nullptr")
        made = FakeRtxRuntime(self) if self.is_rtx else FakeRuntime(self)
        watch(self, made, "~Runtime")
        return made

    # --- for tests ----------------------------------------------------------------------------

    def fail(self, name: str, value: Any = False, says: str = "") -> None:
        """Let the next call of this name answer ``value`` and do nothing."""
        self._answers[name] = Answer(value, says)

    def names(self, *wanted: str) -> list[str]:
        """The names of the calls so far, all or those in ``wanted``."""
        return [call.name for call in self.calls if not wanted or call.name in wanted]

    # --- the simulation -----------------------------------------------------------------------

    def answer(self, name: str, *arguments: Any, gpu: int | None = None) -> Answer | None:
        """Every call goes through here: keep it, and say what a test wants it to answer.

        ``gpu``: the one that the calling thread must have set.
        """
        self.calls.append(Call(threading.current_thread().name, name, arguments))
        if gpu is not None and self.cuda.current != gpu:
            self.cuda.misuse(f"{name} for GPU {gpu} in a thread whose GPU is {self.cuda.current}")
        found = self._answers.pop(name, None)
        if found is not None and found.says:
            self.log(found.says)
        return found

    def log(self, text: str) -> None:
        self._logger.log(Severity.ERROR, text)


class FakeRuntime:
    def __init__(self, trt: FakeTensorRt) -> None:
        self._trt = trt

    def deserialize_cuda_engine(self, serialized_engine: Any) -> FakeEngine | None:
        trt = self._trt
        if trt.cuda.current is None:
            trt.cuda.misuse("deserialize_cuda_engine in a thread without a GPU")
        if (answer := trt.answer("deserialize_cuda_engine", len(serialized_engine))) is not None:
            return answer.value
        try:
            plan = read_blueprint(bytes(serialized_engine))
        except ValueError:
            trt.log("IRuntime::deserializeCudaEngine: Error Code 1: Serialization (magic tag)")
            return None
        if plan.product != trt.builder:
            trt.log("IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (version tag)")
            return None
        namespace, _, rest = plan.plugin.partition("::")
        name, _, version = rest.partition("@")
        creator = trt.get_plugin_registry().get_creator(name, version, namespace)
        if creator is None:
            trt.log(f"Error Code 4: Cannot find plugin {plan.plugin}")
            return None
        meaning = trt.PluginField("meaning", list(plan.meaning.encode()), trt.PluginFieldType.CHAR)
        try:
            layer = creator.create_plugin("layer", [meaning], trt.TensorRTPhase.RUNTIME)
        except Exception:  # what the binding does with a callback's exception
            trt.log("Error Code 2: Internal Error (a plugin could not be created)")
            return None
        made = FakeEngine(EngineState(trt, plan, layer, trt.cuda.current))
        watch(trt, made, "~Engine", made.state.require_no_contexts)
        return made


class FakeRtxRuntime(FakeRuntime):
    @property
    def engine_header_size(self) -> int:
        return HEADER_BYTES

    def get_engine_validity(self, buffer: Any) -> tuple[EngineValidity, int]:
        assert len(buffer) <= HEADER_BYTES, "the header is enough"
        answer = self._trt.answer("get_engine_validity")
        return (EngineValidity.VALID, 0) if answer is None else answer.value
