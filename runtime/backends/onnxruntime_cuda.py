"""Engines on ONNX Runtime's CUDA provider: a device session that no run waits for.

Inputs, outputs and caches are our memory, bound by address once a shape; cache input and output are
one address, as on the CPU. Work is enqueued on our stream, by the host thread that owns it:

    provider option  user_compute_stream                       the stream that kernels go to
    run option       disable_synchronize_execution_providers   run returns when all is enqueued
    provider option  use_tf32 = 0                              float32 is float32, as on the CPU

A node that has no CUDA kernel is given to the CPU without a word, and then each run waits for the
GPU and copies both ways. So the first call is profiled, and such nodes are refused by name. Nodes
on the CPU that compute with shapes alone copy nothing and are fine.

A run is not capturable: it frees page-locked buffers in callbacks on the stream, which a graph
would repeat. So a call costs a launch per kernel. Graphs that ONNX Runtime captures by itself are
not used: it does so in CUDA's global mode, in which no other thread may allocate.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from engines.bundle import MODEL_FILE
from engines.errors import BackendError, DeviceError
from engines.manifest import EngineManifest
from engines.tensors import DType
from plugins.layer import DeviceTensor
from runtime.backends.api import CallShape
from runtime.backends.cpu_kernels import INT8_COMPUTE
from runtime.backends.device_blocks import DeviceBlocks, default_copies
from runtime.backends.device_caches import DeviceCaches
from runtime.backends.onnxruntime import one_line, require_border
from runtime.backends.onnxruntime_gpu_package import (
    INSTALL,
    PROVIDER,
    import_onnxruntime_gpu,
    require_cuda_build,
)
from runtime.backends.onnxruntime_profile import nodes_on_cpu, read_profile
from runtime.backends.vocab_map import load_vocab_map
from runtime.device.api import Buffer
from runtime.device.copies import CudaCopies
from runtime.device.cuda import CudaDevice, CudaStream, current_stream

ASYNC_RUN = ("disable_synchronize_execution_providers", "1")
_BFLOAT16 = 16
"""``onnx.TensorProto.BFLOAT16``: numpy has no such type."""


class OrtCudaSession:
    """One engine on one GPU; see ``runtime.backends.api.DeviceSession``.

    The constructor only keeps what it is given. ``load`` and ``close`` are for the host thread,
    everything else for work on ``stream``. ``num_copies``: kept copies of outputs (default: one
    of a target's, K + 1 of a draft's). ``module`` stands in for onnxruntime in tests.
    """

    is_capturable = False

    def __init__(
        self,
        folder: Path,
        manifest: EngineManifest,
        device: CudaDevice,
        stream: CudaStream,
        *,
        num_slots: int,
        num_copies: int | None = None,
        module: Any = None,
    ) -> None:
        self.manifest = manifest
        self.vocab_map: np.ndarray | None = None
        self._model = folder / MODEL_FILE
        self._folder = folder
        self._device = device
        self._stream = stream
        self._num_slots = num_slots
        self._num_copies = default_copies(manifest) if num_copies is None else num_copies
        self._module = module
        self._runtime: Any = None
        self._handle = 0
        self._steps: dict[tuple[CallShape, int], OrtCudaStep] = {}

    def load(self) -> None:
        """Allocate everything, load the engine, run it once and look at where its nodes ran.

        Raises MissingDependencyError, BackendError, BundleCorruptError and DeviceError.
        """
        if self._module is None:
            self._module = import_onnxruntime_gpu()
        else:
            require_cuda_build(self._module)
        self.vocab_map = load_vocab_map(self._folder, self.manifest)
        self._caches = DeviceCaches(self._device, self.manifest, self._num_slots, is_static=False)
        self._blocks = DeviceBlocks(self._device, self.manifest, self._num_slots, self._num_copies)
        self._ones = self._device.allocate_pinned("ones", (self.num_rows,), np.bool_)
        self._ones.array[:] = True
        with TemporaryDirectory(prefix="ssd-") as folder:
            self._stream.call(partial(self._open, Path(folder)))
            self._stream.call(self._require_gpu_nodes)

    @property
    def version(self) -> str:
        """Of the package that runs the engine."""
        return str(self._module.__version__)

    @property
    def kv_buffer(self) -> Buffer:
        return self._caches.buffer

    @property
    def num_rows(self) -> int:
        return self._caches.rows

    @property
    def caches(self) -> tuple[DeviceTensor, ...]:
        return self._caches.tensors()

    def bind_rows(self, needed: int) -> None:
        self._caches.bind(needed)

    def reset_rows(self) -> None:
        self._caches.reset()

    def prepare(self, shape: CallShape) -> OrtCudaStep:
        key = (shape, self.num_rows)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = self._make_step(shape)
        return step

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        self._caches.copy_slot(source, destination, rows)

    def close(self) -> None:
        """Let go of the engine once the GPU is idle, without waiting for that; idempotent."""
        held = self._take_runtime()
        self._steps.clear()
        for name in ("_ones", "_blocks", "_caches"):  # their memory goes with the last reference
            self.__dict__.pop(name, None)
        if held:
            with suppress(DeviceError):  # the device was closed: nothing runs any more
                self._device.when_idle(held.clear)

    def run_step(self, step: OrtCudaStep) -> None:
        """Enqueue one call; BackendError when ONNX Runtime refuses it."""
        if not self._steps:
            raise BackendError(f"the {self.manifest.role} engine was closed; open the bundle again")
        if int(current_stream().handle) != self._handle:
            # The pair gave a stream up and goes on in another, which an engine cannot change to.
            # The old one was closed, so nothing runs: free the weights before they come again.
            self._take_runtime().clear()
            self._open(None)
        if step.binding is None:
            step.binding = self._bound(step)
        try:
            self._runtime.run_with_iobinding(step.binding, self._run_options)
        except Exception as error:
            shape = step.shape
            raise BackendError(
                f"the {self.manifest.role} engine failed on {self._device.name} at "
                f"{shape.num_slots} x {shape.num_tokens} tokens, {step.mask.shape[-1]} rows: "
                f"{one_line(error)}"
            ) from error.with_traceback(None)  # whose frames keep the engine alive

    def _open(self, profile_folder: Path | None) -> None:
        """On the thread of the stream that runs the engine from now on."""
        module = self._module
        handle = int(current_stream().handle)
        options = module.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_mem_pattern = False  # it keeps a block for every shape it has seen
        if profile_folder is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile_folder / "first-call")
        options.add_session_config_entry(*INT8_COMPUTE)
        wanted = self._provider_options(handle)
        where = f"ONNX Runtime {module.__version__} on {self._device.name}"
        try:
            runtime = module.InferenceSession(
                str(self._model), options, providers=[(PROVIDER, wanted)], enable_fallback=0
            )
        except Exception as error:
            raise BackendError(f"{where} cannot load {self._model}: {one_line(error)}") from error
        if PROVIDER not in runtime.get_providers():
            raise BackendError(
                f"{where}: the CUDA provider did not start, as without the libraries of CUDA and "
                f"cuDNN that it was built for; install them: {INSTALL}"
            )
        found = runtime.get_provider_options()[PROVIDER]
        for name, value in wanted.items():
            if found.get(name, value) != value:
                raise BackendError(
                    f"{where}: its option {name} is {found[name]!r} after {value!r} was asked "
                    f"for; use another version: {INSTALL}"
                )
        require_border(runtime, self.manifest, self._model)
        self._run_options = module.RunOptions()
        self._run_options.add_run_config_entry(*ASYNC_RUN)
        self._runtime, self._handle = runtime, handle

    def _provider_options(self, stream: int) -> dict[str, str]:
        return {
            "device_id": str(self._device.ordinal),
            "user_compute_stream": str(stream),
            "arena_extend_strategy": "kSameAsRequested",  # else it takes up to twice the memory
            "use_tf32": "0",
        }

    def _require_gpu_nodes(self) -> None:
        """Run a call of one token under the profiler; BackendError where it copied to the host."""
        step = self.prepare(CallShape(0, 1, 1, 1))
        # Attend something: a row whose mask is empty is no number, and would stay in the caches.
        copies = CudaCopies(self._device.core)
        copies.copy(self._ones.address, step.mask.address, self.num_rows)
        step.enqueue()
        events = read_profile(Path(self._runtime.end_profiling()))
        if moved := nodes_on_cpu(events):
            raise BackendError(
                f"ONNX Runtime {self._module.__version__} has no CUDA kernel for "
                f"{', '.join(moved)} of {self._model}, and would copy to the CPU and back in each "
                "step; use a newer onnxruntime-gpu, or rebuild with --backend tensorrt"
            )

    def _make_step(self, shape: CallShape) -> OrtCudaStep:
        tensors = self._blocks.tensors(shape, self.num_rows)
        bound = dict(tensors)
        for part, cache in enumerate(self._caches.tensors()):
            name = f"kv.{part // 2}.{('key', 'value')[part % 2]}"
            bound[name] = bound[f"{name}.next"] = DeviceTensor(
                self._caches.address(part, shape.first_slot),
                cache.dtype,
                (shape.num_slots, *cache.shape[1:]),
            )
        return OrtCudaStep(
            shape=shape,
            tokens=tensors["tokens"],
            positions=tensors["positions"],
            write_at=tensors["write_at"],
            mask=tensors["mask"],
            logit_rows=tensors["logit_rows"],
            num_draft=tensors["num_draft"],
            logits=tensors["logits"],
            bound=bound,
            session=self,
        )

    def _bound(self, step: OrtCudaStep) -> object:
        binding = self._runtime.io_binding()
        for spec in self.manifest.inputs:
            self._bind(binding.bind_input, spec.name, step.bound[spec.name])
        for spec in self.manifest.outputs:
            self._bind(binding.bind_output, spec.name, step.bound[spec.name])
        return binding

    def _bind(self, method: Any, name: str, tensor: DeviceTensor) -> None:
        kind = _BFLOAT16 if tensor.dtype is DType.BFLOAT16 else tensor.dtype.numpy.type
        method(name, "cuda", self._device.ordinal, kind, list(tensor.shape), tensor.address)

    def _take_runtime(self) -> list[Any]:
        """The only reference to the engine, none where there is none: a binding has one too."""
        for step in self._steps.values():
            step.binding = None
        held = [] if self._runtime is None else [self._runtime]
        self._runtime, self._handle = None, 0
        return held


@dataclass(slots=True)
class OrtCudaStep:
    """See ``runtime.backends.api.DeviceStep``."""

    shape: CallShape
    tokens: DeviceTensor
    positions: DeviceTensor
    write_at: DeviceTensor
    mask: DeviceTensor
    logit_rows: DeviceTensor
    num_draft: DeviceTensor
    logits: DeviceTensor
    bound: dict[str, DeviceTensor] = field(repr=False)
    """Every input and output of the engine."""
    session: OrtCudaSession = field(repr=False)
    binding: object = None
    """To the engine that is open now; None until the step runs with it."""

    def enqueue(self) -> None:
        self.session.run_step(self)
