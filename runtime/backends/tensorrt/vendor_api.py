"""The part of TensorRT's and TensorRT-RTX's Python modules that a session calls, and nothing else.

Both have the same names, which were compared with the packages of TensorRT 10.15 and 11.4 and of
TensorRT-RTX 1.7; a test holds the installed ones, and the simulation that tests run on, to the
names and parameters below. What only TensorRT-RTX has stands in classes of its own.

Enumerations (DataType, TensorIOMode, ...) are values of the module and stay untyped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

Blob: TypeAlias = bytes | memoryview


class Context(Protocol):
    """``IExecutionContext``: an engine at some shapes and addresses; one thread at a time."""

    def set_device_memory(self, memory: int, size: int) -> None: ...

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool: ...

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool: ...

    def set_tensor_address(self, name: str, memory: int) -> bool: ...

    def infer_shapes(self) -> list[str]: ...

    def execute_async_v3(self, stream_handle: int) -> bool: ...


class Config(Protocol):
    """``IRuntimeConfig``."""

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None: ...


class RuntimeCache(Protocol):
    """``IRuntimeCache`` of TensorRT-RTX: the kernels that it compiled for a GPU."""

    def serialize(self) -> Any:
        """Memory that ``bytes`` copies, or None."""

    def deserialize(self, blob: Blob) -> bool: ...


class RtxConfig(Config, Protocol):
    """What TensorRT-RTX adds to ``IRuntimeConfig``."""

    @property
    def cuda_graph_strategy(self) -> Any: ...

    @cuda_graph_strategy.setter
    def cuda_graph_strategy(self, strategy: Any) -> None: ...

    @property
    def dynamic_shapes_kernel_specialization_strategy(self) -> Any: ...

    @dynamic_shapes_kernel_specialization_strategy.setter
    def dynamic_shapes_kernel_specialization_strategy(self, strategy: Any) -> None: ...

    def create_runtime_cache(self) -> RuntimeCache | None: ...

    def set_runtime_cache(self, cache: RuntimeCache) -> bool: ...


class Engine(Protocol):
    """``ICudaEngine``."""

    @property
    def num_io_tensors(self) -> int: ...

    @property
    def num_optimization_profiles(self) -> int: ...

    @property
    def device_memory_size_v2(self) -> int: ...

    def get_tensor_name(self, index: int) -> str: ...

    def get_tensor_mode(self, name: str) -> Any: ...

    def get_tensor_dtype(self, name: str) -> Any: ...

    def get_tensor_shape(self, name: str) -> Sequence[int]: ...

    def get_tensor_format(self, name: str, profile_index: int) -> Any: ...

    def get_tensor_location(self, name: str) -> Any: ...

    def get_tensor_profile_shape(
        self, name: str, profile_index: int
    ) -> Sequence[Sequence[int]]: ...

    def get_aliased_input_tensor(self, name: str) -> str | None: ...

    def get_engine_stat(self, stat: Any) -> int: ...

    def create_runtime_config(self) -> Any: ...

    def create_execution_context(self, runtime_config: Config) -> Context | None: ...


class Runtime(Protocol):
    """``IRuntime``."""

    def deserialize_cuda_engine(self, serialized_engine: Blob) -> Engine | None: ...


class RtxRuntime(Runtime, Protocol):
    """What TensorRT-RTX adds to ``IRuntime``."""

    @property
    def engine_header_size(self) -> int: ...

    def get_engine_validity(self, buffer: Blob) -> tuple[Any, int]: ...
