"""A deserialised engine and what hangs on it, made on the engine's thread and released in order.

    runtime  ->  engine  ->  config (+ TensorRT-RTX: kernel cache)  ->  contexts over one memory

All contexts of an engine run on one stream, one after the other, so the memory for activations is
allocated once and lent to each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from engines.errors import BundleIncompatibleError
from engines.manifest import EngineManifest, PlanFacts
from plugins import tensorrt as registry
from plugins.vendor_log import logger_for
from runtime.backends.tensorrt import layers
from runtime.backends.tensorrt.border import require_border
from runtime.backends.tensorrt.faults import Faults
from runtime.backends.tensorrt.plan_file import entry_of, facts_of, open_plan
from runtime.backends.tensorrt.runtime_cache import KernelFile, Note, cache_path
from runtime.backends.tensorrt.step import BoundContext
from runtime.backends.tensorrt.vendor import Vendor
from runtime.backends.tensorrt.vendor_api import (
    Blob,
    Config,
    Engine,
    RtxConfig,
    RtxRuntime,
    Runtime,
    RuntimeCache,
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that runs an engine: its name, and its compute capability ("9.0")."""

    name: str
    capability: str


def require_runnable(vendor: Vendor, plan: PlanFacts, gpu: Gpu, role: str) -> None:
    """BundleIncompatibleError for a plan of another release, or of other GPUs."""
    if plan.builder != vendor.builder:
        raise BundleIncompatibleError(
            f"the {role} engine was compiled by {plan.builder}, which alone can read it, and "
            f"{vendor.builder} is here; install that release or build the bundle again"
        )
    if gpu.capability not in plan.capabilities:
        raise BundleIncompatibleError(
            f"the {role} engine was compiled for compute capability "
            f"{' '.join(plan.capabilities)}, and {gpu.name} has {gpu.capability}; build the bundle "
            f"again with --compute-capability {gpu.capability}"
        )


class LoadedEngine:
    """The engine of one plan. All but `release` is for the thread of the engine's stream."""

    def __init__(
        self, vendor: Vendor, folder: Path, manifest: EngineManifest, gpu: Gpu, note: Note
    ) -> None:
        """Deserialise and check the plan; the calling thread's GPU must be set.

        Raises BundleCorruptError and BundleIncompatibleError for a plan that is not the
        manifest's or not for this place, BackendError where TensorRT refuses it otherwise.
        """
        self._trt = vendor.module
        self._note = note
        self._runtime: Runtime | None = None
        self._engine: Engine | None = None
        self._config: Config | None = None
        self._cache: RuntimeCache | None = None
        self._kernels: KernelFile | None = None
        self._contexts: list[BoundContext] = []
        plan = facts_of(manifest, folder)
        require_runnable(vendor, plan, gpu, manifest.role)
        logger, messages = logger_for(self._trt)
        self.faults = Faults(vendor, manifest.role, messages)
        layers.register(self._trt, plan)
        registry.refusals(self._trt)  # those of engines before
        self.faults.forget()
        try:
            self._runtime = self._create_runtime(logger)
            with open_plan(folder, manifest) as blob:
                self._engine = self._deserialise(vendor, blob)
            require_border(self._trt, self._engine, manifest, plan)
            self._config = self._create_config()
            if vendor.is_rtx:
                path = cache_path(folder / plan.file, gpu.name)
                self._set_up_rtx(KernelFile(path, entry_of(manifest, folder).sha256, note))
        except BaseException:
            self.release()
            raise
        self.activation_bytes = self._engine.device_memory_size_v2
        self.weight_bytes = self._engine.get_engine_stat(self._trt.EngineStat.TOTAL_WEIGHTS_SIZE)

    def create_context(self, activations: int) -> BoundContext:
        """A new context that computes in the memory at the address ``activations``.

        Raises BackendError.
        """
        assert self._engine is not None
        assert self._config is not None
        self.faults.forget()
        context = self._engine.create_execution_context(self._config)
        if context is None:
            raise self.faults.make("create_execution_context")
        bound = BoundContext(context)
        del context
        self._contexts.append(bound)
        if self.activation_bytes:
            bound.context.set_device_memory(activations, self.activation_bytes)
            if self.faults.messages.errors_here:  # it returns nothing, but says when it refuses
                raise self.faults.make(f"set_device_memory({self.activation_bytes} bytes)")
        return bound

    def release(self) -> None:
        """Let go of everything, the last made first; idempotent, raises nothing.

        No work of the engine may be running on the GPU.
        """
        for bound in self._contexts:
            bound.release()
        self._contexts.clear()
        self._config = None
        if self._cache is not None and self._kernels is not None:
            try:
                self._kernels.save(self._cache)
            except Exception as error:  # a lost GPU; the file is a convenience
                self._note(f"the kernels of {self._kernels.path} were not kept: {error}")
        self._cache = None
        self._engine = None
        self._runtime = None

    def _create_runtime(self, logger: Any) -> Runtime:
        try:
            return cast("Runtime", self._trt.Runtime(logger))
        except (TypeError, RuntimeError) as error:  # what the binding makes of a null pointer
            raise self.faults.make(
                "creating the runtime", "nvidia-smi must run here", error
            ) from error

    def _deserialise(self, vendor: Vendor, plan: Blob) -> Engine:
        verdict = self._verdict(plan) if vendor.is_rtx else None
        self.faults.forget()
        engine = cast("Runtime", self._runtime).deserialize_cuda_engine(plan)
        if engine is None:
            refused = registry.refusals(self._trt)
            if refused:
                raise BundleIncompatibleError(refused[0])
            why = "" if verdict is None else f"its header is {verdict}, "
            raise self.faults.make(f"deserialize_cuda_engine ({why}{len(plan)} bytes)")
        if verdict is not None:
            self._note(f"TensorRT-RTX calls the {self.faults.role} engine {verdict}")
        return engine

    def _verdict(self, plan: Blob) -> str | None:
        """What TensorRT-RTX makes of the plan's header, None for valid.

        It decides nothing: releases are reported to call plans invalid that they then read. It
        explains a plan that is refused.
        """
        runtime = cast("RtxRuntime", self._runtime)
        validity, reasons = runtime.get_engine_validity(plan[: runtime.engine_header_size])
        if validity == self._trt.EngineValidity.VALID:
            return None
        kinds = self._trt.EngineInvalidityDiagnostics.__members__.items()
        named = [
            name.lower().replace("_", " ") for name, kind in kinds if reasons & int(kind.value)
        ]
        word = str(validity.name).lower()
        return f"{word} ({', '.join(named)})" if named else word

    def _create_config(self) -> Config:
        assert self._engine is not None
        config: Config | None = self._engine.create_runtime_config()
        if config is None:
            raise self.faults.make("create_runtime_config")
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        config.set_execution_context_allocation_strategy(strategy)
        return config

    @property
    def _rtx_config(self) -> RtxConfig:
        return cast("RtxConfig", self._config)

    def _set_up_rtx(self, kernels: KernelFile) -> None:
        """No variable holds a config or a cache: an error would keep them beyond their engine."""
        trt = self._trt
        self.faults.forget()
        # It captures a graph for each shape by itself, when that shape's kernels are compiled.
        graphs = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        self._rtx_config.cuda_graph_strategy = graphs
        # LAZY would change the kernels, and so the rounding, in the middle of a text.
        eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
        self._rtx_config.dynamic_shapes_kernel_specialization_strategy = eager
        for name, wanted in (
            ("cuda_graph_strategy", graphs),
            ("dynamic_shapes_kernel_specialization_strategy", eager),
        ):
            if getattr(self._rtx_config, name) != wanted:
                raise self.faults.make(f"setting {name} to {wanted.name}")
        self._cache = self._rtx_config.create_runtime_cache()
        if self._cache is None:
            raise self.faults.make("create_runtime_cache")
        kernels.load(self._cache)
        self.faults.forget()
        if not self._rtx_config.set_runtime_cache(self._cache):
            raise self.faults.make("set_runtime_cache", f"remove {kernels.path} and try again")
        self._kernels = kernels


def require_contiguous_slots(manifest: EngineManifest, num_slots: int, alignment: int) -> None:
    """BundleIncompatibleError where a call could not begin at another slot than the first."""
    kv = manifest.kv
    size = kv.num_kv_heads * kv.rows * kv.head_dim * kv.dtype.itemsize
    if num_slots > 1 and size % alignment:
        raise BundleIncompatibleError(
            f"a slot of the {manifest.role} engine's cache has {size} bytes, and TensorRT takes "
            f"addresses that are multiples of {alignment}; build the bundle again with a "
            "--max-branches that is a multiple of 16, or run it with --max-batch 1"
        )
