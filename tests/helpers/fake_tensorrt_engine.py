"""``ICudaEngine`` and ``IRuntimeConfig`` of the simulated TensorRT of `fake_tensorrt_module`."""

from __future__ import annotations

from functools import partial
from typing import Any

from plugins.layer import VENDOR_NAMES
from tests.helpers.fake_tensorrt_context import FakeContext
from tests.helpers.fake_tensorrt_state import (
    CudaGraphStrategy,
    DynamicShapesKernelSpecializationStrategy,
    EngineStat,
    EngineState,
    ExecutionContextAllocationStrategy,
    FakeRuntimeCache,
    Settings,
    TensorIOMode,
    TensorLocation,
    watch,
)


class FakeEngine:
    """``ICudaEngine``."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    @property
    def num_io_tensors(self) -> int:
        return len(self.state.specs)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.state.plan.profiles)

    @property
    def device_memory_size_v2(self) -> int:
        return self.state.activation_bytes

    def get_tensor_name(self, index: int) -> str:
        return list(self.state.specs)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.state.input_names else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return getattr(self.state.trt.DataType, VENDOR_NAMES[self.state.specs[name].dtype])

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(-1 if isinstance(dim, str) else dim for dim in self.state.specs[name].shape)

    def get_tensor_format(self, name: str, profile_index: int) -> Any:
        assert 0 <= profile_index < self.num_optimization_profiles
        layout = self.state.plan.layouts.get(name, "LINEAR")
        return getattr(self.state.trt.TensorFormat, layout)

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation[self.state.plan.places.get(name, "DEVICE")]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        profile = self.state.plan.profiles[profile_index]
        return [
            tuple(
                getattr(profile.span(dim), end) if isinstance(dim, str) else dim
                for dim in self.state.specs[name].shape
            )
            for end in ("least", "typical", "most")
        ]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.state.plan.aliases.get(name)

    def get_engine_stat(self, stat: EngineStat) -> int:
        assert stat is EngineStat.TOTAL_WEIGHTS_SIZE
        return self.state.table.nbytes

    def create_runtime_config(self) -> FakeConfig | None:
        if (answer := self.state.answer("create_runtime_config")) is not None:
            return answer.value
        made = (FakeRtxConfig if self.state.trt.is_rtx else FakeConfig)(self.state)
        watch(self.state.trt, made, "~Config")
        return made

    def create_execution_context(self, runtime_config: FakeConfig) -> FakeContext | None:
        state = self.state
        if (answer := state.answer("create_execution_context")) is not None:
            return answer.value
        if state.trt.cuda.is_capturing_anywhere():
            state.trt.cuda.misuse("a context was created during a capture")
        made = FakeContext(state, runtime_config.settings)
        state.num_contexts += 1
        watch(state.trt, made, "~Context", partial(state.forget_context, made.pending))
        return made


class FakeConfig:
    """``IRuntimeConfig``."""

    def __init__(self, state: EngineState) -> None:
        self.settings = Settings()
        self._state = state

    def set_execution_context_allocation_strategy(
        self, strategy: ExecutionContextAllocationStrategy
    ) -> None:
        self._state.answer("set_execution_context_allocation_strategy", strategy)
        self.settings.allocation = strategy


class FakeRtxConfig(FakeConfig):
    @property
    def cuda_graph_strategy(self) -> CudaGraphStrategy:
        return self.settings.graphs

    @cuda_graph_strategy.setter
    def cuda_graph_strategy(self, strategy: CudaGraphStrategy) -> None:
        if self._state.answer("cuda_graph_strategy", strategy) is None:
            self.settings.graphs = strategy

    @property
    def dynamic_shapes_kernel_specialization_strategy(
        self,
    ) -> DynamicShapesKernelSpecializationStrategy:
        return self.settings.shapes

    @dynamic_shapes_kernel_specialization_strategy.setter
    def dynamic_shapes_kernel_specialization_strategy(
        self, strategy: DynamicShapesKernelSpecializationStrategy
    ) -> None:
        if self._state.answer("dynamic_shapes_kernel_specialization_strategy", strategy) is None:
            self.settings.shapes = strategy

    def create_runtime_cache(self) -> FakeRuntimeCache | None:
        if (answer := self._state.answer("create_runtime_cache")) is not None:
            return answer.value
        made = FakeRuntimeCache(self._state.trt)
        watch(self._state.trt, made, "~RuntimeCache")
        return made

    def set_runtime_cache(self, cache: FakeRuntimeCache) -> bool:
        if (answer := self._state.answer("set_runtime_cache")) is not None:
            return answer.value
        self.settings.cache = cache
        return True
