"""``IExecutionContext`` of the simulated TensorRT of `fake_tensorrt_module`."""

from __future__ import annotations

import json
import math

from engines.manifest import TARGET
from tests.helpers.fake_cuda_objects import Op
from tests.helpers.fake_tensorrt_state import (
    WORKSPACE,
    EngineState,
    ExecutionContextAllocationStrategy,
    Settings,
)
from tests.helpers.fake_tensorrt_toy import run
from tests.plugins.fake_tensorrt import Desc

ALIGNMENT = 256


class FakeContext:
    """``IExecutionContext``."""

    def __init__(self, state: EngineState, settings: Settings) -> None:
        self.pending = [0]
        self._state = state
        self._settings = settings
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._memory = 0
        self._is_warm = False

    def set_device_memory(self, memory: int, size: int) -> None:
        if self._state.answer("set_device_memory", memory, size) is not None:
            return
        assert self._settings.allocation is ExecutionContextAllocationStrategy.USER_MANAGED
        if memory % ALIGNMENT or size < self._state.activation_bytes:
            self._refuse("setDeviceMemoryV2", "the memory is too small or not aligned")
        else:
            self._state.trt.cuda.buffer_at(memory, size)
            self._memory = memory

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        name = "set_optimization_profile_async"
        if (answer := self._state.answer(name, profile_index)) is not None:
            return answer.value
        if self._state.trt.cuda.is_capturing(stream_handle):
            self._state.trt.cuda.misuse(f"{name} during a capture")
        self._profile = profile_index
        self._shapes.clear()
        self._is_warm = False
        return 0 <= profile_index < len(self._state.plan.profiles)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if (answer := self._state.answer("set_input_shape", name, shape)) is not None:
            return answer.value
        profile = self._state.plan.profiles[self._profile]
        dims = self._state.specs[name].shape
        fits = len(dims) == len(shape) and all(
            profile.span(dim).holds(size) if isinstance(dim, str) else dim == size
            for dim, size in zip(dims, shape, strict=True)
        )
        if not fits:
            return self._refuse("setInputShape", f"{name} is out of its profile")
        self._is_warm &= self._shapes.get(name) == shape
        self._shapes[name] = shape
        return True

    def infer_shapes(self) -> list[str]:
        if (answer := self._state.answer("infer_shapes")) is not None:
            if isinstance(answer.value, type):
                raise answer.value("as the bindings raise")
            return answer.value
        return self._missing

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if (answer := self._state.answer("set_tensor_address", name, memory)) is not None:
            return answer.value
        if name not in self._state.specs or memory % ALIGNMENT:
            return self._refuse("setTensorAddress", f"{name} at {memory:#x}")
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        state, cuda = self._state, self._state.trt.cuda
        if (answer := state.answer("execute_async_v3", stream_handle)) is not None:
            if isinstance(answer.value, type):
                raise answer.value("as the bindings raise")
            return answer.value
        if self._missing or self._addresses.keys() != state.specs.keys() or not self._memory:
            return self._refuse("enqueueV3", "a shape, an address or the memory was not set")
        for output, source in state.plan.aliases.items():
            if self._addresses[output] != self._addresses[source]:
                cuda.misuse(f"{output} and {source} are one tensor at two addresses")
        is_capturing = cuda.is_capturing(stream_handle)
        if is_capturing and (not self._is_warm or state.trt.is_rtx):
            return self._refuse("enqueueV3", "operation not permitted when stream is capturing")
        self._compile()
        shapes = {name: self._shape(name) for name in state.specs}
        addresses = dict(self._addresses)
        buffers = [
            cuda.buffer_at(addresses[name], math.prod(shapes[name]) * spec.dtype.itemsize)
            for name, spec in state.specs.items()
        ]
        buffers.append(cuda.buffer_at(self._memory, state.activation_bytes))
        drafts, pending = self._memory, self.pending

        def compute() -> None:
            run(state.plan, state.table, shapes, addresses, drafts)
            if not is_capturing:  # a graph is replayed any number of times
                pending[0] -= 1

        if not is_capturing:
            pending[0] += 1
        with cuda.entered("engine", stream_handle, gpu=state.gpu):
            cuda.stream_of(stream_handle).submit(Op(compute, tuple(buffers)))
        self._is_warm = True
        return self._enqueue_layer(shapes, addresses, stream_handle)

    @property
    def _missing(self) -> list[str]:
        return sorted(self._state.input_names - self._shapes.keys())

    def _compile(self) -> None:
        """TensorRT-RTX compiles kernels at the first run of a shape."""
        if not self._state.trt.is_rtx:
            return
        cache = self._settings.cache
        key = json.dumps([self._profile, sorted(self._shapes.items())])
        if cache is None or key not in cache.kernels:
            self._state.trt.num_compiled += 1
        if cache is not None:
            cache.kernels.add(key)

    def _shape(self, name: str) -> tuple[int, ...]:
        source = self._state.plan.aliases.get(name, name)
        if source in self._shapes:
            return self._shapes[source]
        batch, logits = self._shapes["logit_rows"]
        sizes = {"B": batch, "R": logits}
        dims = self._state.specs[name].shape
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)

    def _enqueue_layer(
        self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int], stream: int
    ) -> bool:
        state = self._state
        int64 = state.trt.DataType.INT64
        logits = Desc(shapes["logits"], state.trt.DataType.FLOAT)
        if state.plan.role == TARGET:
            batch, rows = shapes["logit_rows"]
            descs = [logits, Desc((batch, rows - 1), int64), Desc((batch,), int64)]
            inputs = [addresses["logits"], self._memory, addresses["num_draft"]]
            outputs = ["accepted", "next"]
        else:
            descs = [logits, Desc(state.ids.shape, int64)]
            inputs = [addresses["logits"], state.ids.ctypes.data]
            outputs = ["sample"]
        workspace = self._memory + state.activation_bytes - WORKSPACE
        try:
            state.layer.on_shape_change(descs, [])
            state.layer.enqueue(
                descs,
                [Desc(shapes[name], int64) for name in outputs],
                inputs,
                [addresses[name] for name in outputs],
                workspace,
                stream,
            )
        except Exception:  # the binding turns it into a code
            return self._refuse("enqueueV3", "a plugin returned an error")
        return True

    def _refuse(self, call: str, why: str) -> bool:
        self._state.trt.log(f"IExecutionContext::{call}: Error Code 3: API Usage Error ({why})")
        return False
