"""``onnxruntime`` with a CUDA provider, over the simulated CUDA: calls are enqueued on the stream
that was given, and compute what the CPU provider computes, in the "GPU's" memory.

It holds callers to what ONNX Runtime asks (every option by its name, tensors that lie whole in live
buffers, the thread of the GPU) and keeps every call.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_cuda_objects import FakeCudaError

OPTIONS = {
    "device_id": "0",
    "user_compute_stream": "0",
    "has_user_compute_stream": "0",
    "arena_extend_strategy": "kNextPowerOfTwo",
    "gpu_mem_limit": str(2**64 - 1),
    "do_copy_in_default_stream": "1",
    "cudnn_conv_algo_search": "EXHAUSTIVE",
    "enable_cuda_graph": "0",
    "use_tf32": "1",
    "use_ep_level_unified_stream": "0",
    "prefer_nhwc": "0",
    "sdpa_kernel": "0",
}
"""Options of the CUDA provider of onnxruntime-gpu 1.31 that matter here, and their defaults."""
RUN_KEYS = ("disable_synchronize_execution_providers",)
PROVIDER = "CUDAExecutionProvider"


@dataclass
class RunOptions:
    entries: dict[str, str] = field(default_factory=dict)

    def add_run_config_entry(self, name: str, value: str) -> None:
        assert name in RUN_KEYS, name
        self.entries[name] = value


@dataclass(frozen=True)
class Run:
    """One call as it was made."""

    stream: int
    entries: dict[str, str]
    shapes: dict[str, tuple[int, ...]]


class FakeOrt:
    """The module. What is set here is for tests.

    ``nodes_on_cpu``: operators that the provider lacks, each with a copy. ``starts``: whether the
    provider's libraries are there. ``ignored``: options that this release does not take over.
    ``fails_at_run``, ``failing``: every session's runs fail, or those of one.
    """

    def __init__(self, cuda: FakeCuda, version: str = "1.31.0", *, has_cuda: bool = True) -> None:
        self.cuda = cuda
        self.__version__ = version
        self.has_cuda = has_cuda
        self.starts = True
        self.ignored: set[str] = set()
        self.nodes_on_cpu: list[str] = []
        self.is_profile_lost = False
        self.fails_at_run = False
        self.failing: FakeInferenceSession | None = None
        self.sessions: list[FakeInferenceSession] = []
        self.runs: list[Run] = []
        self.SessionOptions = onnxruntime.SessionOptions
        self.RunOptions = RunOptions

    def get_available_providers(self) -> list[str]:
        return [*([PROVIDER] if self.has_cuda else []), "CPUExecutionProvider"]

    def preload_dlls(self) -> None:
        sys.stdout.write("libcublas is not where it was looked for")

    def InferenceSession(  # noqa: N802 - the name in onnxruntime
        self, path: str, options: Any, *, providers: list[Any], enable_fallback: int
    ) -> FakeInferenceSession:
        assert enable_fallback == 0, "a failed run would silently go on, on the CPU"
        session = FakeInferenceSession(self, path, options, providers)
        self.sessions.append(session)
        return session


class FakeInferenceSession:
    def __init__(self, ort: FakeOrt, path: str, options: Any, providers: list[Any]) -> None:
        [(name, wanted)] = providers
        assert name == PROVIDER
        self.ort = ort
        self.options = OPTIONS | {
            "has_user_compute_stream": str(int("user_compute_stream" in wanted))
        }
        for option, value in wanted.items():
            if option not in OPTIONS:
                raise RuntimeError(f"Unknown provider option: {option}")
            if option not in ort.ignored:
                self.options[option] = value
        self.ordinal = int(self.options["device_id"])
        self.profile = Path(f"{options.profile_file_prefix}_2026.json")
        self.is_profiling = options.enable_profiling
        plain = onnxruntime.SessionOptions()
        plain.intra_op_num_threads = 1
        plain.log_severity_level = 3
        plain.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
        self.real = onnxruntime.InferenceSession(path, plain, providers=["CPUExecutionProvider"])

    def get_providers(self) -> list[str]:
        return [*([PROVIDER] if self.ort.starts else []), "CPUExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: dict(self.options)}

    def get_inputs(self) -> Sequence[Any]:
        return self.real.get_inputs()

    def get_outputs(self) -> Sequence[Any]:
        return self.real.get_outputs()

    def io_binding(self) -> FakeBinding:
        return FakeBinding(self)

    def end_profiling(self) -> str:
        assert self.is_profiling
        self.is_profiling = False
        if not self.ort.is_profile_lost:
            self.profile.write_text(json.dumps(self._events()), encoding="utf-8")
        return str(self.profile)

    def run_with_iobinding(self, binding: FakeBinding, options: RunOptions) -> None:
        cuda = self.ort.cuda
        if self.ort.fails_at_run or self.ort.failing is self:
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUBLAS failure 14:\n  no handle")
        if cuda.current != self.ordinal:
            cuda.misuse(f"a run for GPU {self.ordinal} in a thread whose GPU is {cuda.current}")
        stream = cuda.stream_of(int(self.options["user_compute_stream"]))
        assert options.entries.get("disable_synchronize_execution_providers") == "1"
        if stream.builder is not None:
            raise FakeCudaError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a run. Not here.")
        tensors = dict(binding.tensors)
        buffers = tuple(
            cuda.buffer_at(address, int(np.prod(shape)) * np.dtype(kind).itemsize)
            for shape, kind, address in tensors.values()
        )
        cuda.kernel(stream, lambda: self._compute(tensors), *buffers)
        self.ort.runs.append(
            Run(
                stream.handle,
                dict(options.entries),
                {name: shape for name, (shape, _, _) in tensors.items()},
            )
        )

    def _compute(self, tensors: dict[str, tuple[tuple[int, ...], Any, int]]) -> None:
        arrays = {
            name: np.ctypeslib.as_array(
                (ctypes.c_uint8 * (int(np.prod(shape)) * np.dtype(kind).itemsize)).from_address(
                    address
                )
            )
            .view(kind)
            .reshape(shape)
            for name, (shape, kind, address) in tensors.items()
        }
        feed = {each.name: arrays[each.name].copy() for each in self.real.get_inputs()}
        names = [each.name for each in self.real.get_outputs()]
        for name, value in zip(names, self.real.run(names, feed), strict=True):
            arrays[name][...] = value

    def _events(self) -> list[dict[str, Any]]:
        nodes = [
            ("MatMul", PROVIDER),
            ("Shape", "CPUExecutionProvider"),
            ("Sub", "CPUExecutionProvider"),
        ]
        for op in self.ort.nodes_on_cpu:
            nodes += [("MemcpyToHost", PROVIDER), (op, "CPUExecutionProvider")]
        events: list[dict[str, Any]] = [{"cat": "Session", "name": "model_loading", "args": {}}]
        for op, provider in nodes:
            events.append({"cat": "Node", "args": {"op_name": op, "provider": provider}})
        return events


class FakeBinding:
    """Outputs named ``x.next`` share the memory of the input ``x``. It keeps its session alive."""

    def __init__(self, session: FakeInferenceSession) -> None:
        self.session = session
        self.ordinal = session.ordinal
        self.tensors: dict[str, tuple[tuple[int, ...], Any, int]] = {}

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Any,
        buffer_ptr: int,
    ) -> None:
        assert (device_type, device_id) == ("cuda", self.ordinal)
        self.tensors[name] = (tuple(shape), element_type, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Any,
        buffer_ptr: int,
    ) -> None:
        self.bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
