"""A GPU that is host memory, and plans that ONNX Runtime executes: all of polygraphy's TensorRT
runner but the hardware. It holds callers to what TensorRT asks: profiles, addresses, aliases.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from engines.manifest import EngineManifest
from engines.profiles import ShapeProfile

SYMBOLS = {"B": "batch", "T": "tokens", "R": "logits", "L": "length"}


class FakeCuda:
    """What ``polygraphy.cuda.wrapper()`` gives, over ctypes buffers."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.num_allocations = 0
        self.num_copies = 0

    def malloc(self, nbytes: int) -> int:
        self.num_allocations += 1
        block = ctypes.create_string_buffer(max(nbytes, 1))
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, ptr: int) -> None:
        if ptr:
            del self.blocks[ptr]

    def memcpy(self, dst: int, src: int, nbytes: int, kind: Any, stream_ptr: Any = None) -> None:
        del kind, stream_ptr
        self.num_copies += 1
        ctypes.memmove(dst, src, nbytes)

    def create_stream(self) -> int:
        return 1

    def stream_synchronize(self, ptr: int) -> None:
        assert ptr == 1

    def destroy_stream(self, ptr: int) -> None:
        assert ptr == 1


class FakeEngine:
    """``ICudaEngine`` of one engine's manifest; ``model`` is executed in its place."""

    def __init__(self, manifest: EngineManifest, model: Path, trt: Any) -> None:
        assert manifest.plan is not None
        self.manifest = manifest
        self.profiles: tuple[ShapeProfile, ...] = manifest.plan.profiles
        self.inputs = {spec.name: spec for spec in manifest.inputs}
        self.specs = [*manifest.inputs, *manifest.outputs]
        self.types = {spec.name: spec.dtype for spec in self.specs}
        self.trt = trt
        self.used_profiles: list[str] = []
        self.output_blocks: set[int] = set()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )

    @property
    def num_io_tensors(self) -> int:
        return len(self.specs)

    def get_tensor_name(self, index: int) -> str:
        return self.specs[index].name

    def get_tensor_mode(self, name: str) -> Any:
        return self.trt.TensorIOMode.INPUT if name in self.inputs else self.trt.TensorIOMode.OUTPUT

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        spec = next(spec for spec in self.specs if spec.name == name)
        return tuple(-1 if isinstance(dim, str) else dim for dim in spec.shape)

    def get_tensor_dtype(self, name: str) -> Any:
        names = {"float16": "HALF", "float32": "FLOAT", "int64": "INT64", "bool": "BOOL"}
        return getattr(self.trt.DataType, names[self.types[name].value])

    def get_tensor_format(self, _name: str, _profile: int) -> Any:
        return self.trt.TensorFormat.LINEAR

    def is_shape_inference_io(self, _name: str) -> bool:
        return False

    def get_aliased_input_tensor(self, name: str) -> str | None:
        source = name.removesuffix(".next")
        return source if source != name else None

    def create_execution_context(self) -> FakeContext:
        return FakeContext(self)


class FakeContext:
    """``IExecutionContext``: refuses what is outside its profile."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.active_optimization_profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, index: int, _stream: int) -> bool:
        self.active_optimization_profile = index
        self.engine.used_profiles.append(self.engine.profiles[index].name)
        return 0 <= index < len(self.engine.profiles)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        aliased = self.engine.get_aliased_input_tensor(name)
        return self.shapes.get(aliased or name, self.engine.get_tensor_shape(name))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        profile = self.engine.profiles[self.active_optimization_profile]
        dims = self.engine.inputs[name].shape
        fits = len(dims) == len(shape) and all(
            getattr(profile, SYMBOLS[dim]).holds(size) if isinstance(dim, str) else dim == size
            for dim, size in zip(dims, shape, strict=True)
        )
        self.shapes[name] = tuple(shape)
        return fits

    def get_tensor_address(self, name: str) -> int:
        return self.addresses.get(name, 0)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address != 0

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def execute_async_v3(self, _stream: int) -> bool:
        engine = self.engine
        feed = {
            name: self._memory(name, self.shapes[name], spec.dtype.numpy).copy()
            for name, spec in engine.inputs.items()
        }
        names = [spec.name for spec in engine.manifest.outputs]
        for name, value in zip(names, engine.session.run(names, feed), strict=True):
            aliased = engine.get_aliased_input_tensor(name)
            if aliased is not None:
                assert self.addresses[name] == self.addresses[aliased], "not updated in place"
            else:
                allocator = self.allocators[name]
                address = allocator.reallocate_output(name, 0, value.nbytes, 1)
                allocator.notify_shape(name, value.shape)
                self.addresses[name] = address
                engine.output_blocks.add(address)
            self._memory(name, value.shape, value.dtype)[...] = value
        return True

    def _memory(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        block = (ctypes.c_char * nbytes).from_address(self.addresses[name])
        return np.frombuffer(block, dtype).reshape(shape)
