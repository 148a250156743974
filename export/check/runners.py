"""A bundle's engines behind polygraphy's runners: the kept ONNX file, and the compiled plan."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.bundle import Bundle
from engines.errors import BackendError, BundleIncompatibleError, UsageError
from engines.manifest import DRAFT, EngineManifest, PlanFacts
from engines.tensors import DType
from export.check.launcher import ReferenceLauncher
from export.packages import require
from export.tensorrt import vendor as vendors
from export.tensorrt.capabilities import local_gpu
from plugins import tensorrt as layers
from plugins.vendor_log import Messages, logger_for

ONNXRUNTIME = "onnxruntime"
_POLYGRAPHY = ("", ".exception", ".logger", ".cuda", ".backend.onnxrt", ".backend.trt")
_SILENT = 60
"""Above polygraphy's CRITICAL."""


def require_polygraphy(purpose: str) -> None:
    """MissingDependencyError where polygraphy is not installed, BackendError where it is broken."""
    for part in _POLYGRAPHY:
        require(f"polygraphy{part}", "polygraphy", "bench", purpose)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Keep polygraphy's log off stdout; its errors become BackendError."""
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(_SILENT):
            yield
    except PolygraphyException as error:
        raise BackendError(f"polygraphy: {' '.join(str(error).split())}") from error


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may keep busy: its affinity, within its container's quota."""
    from runtime.device.cores import available_cores, cpu_quota

    cores, quota = available_cores(), cpu_quota()
    return cores if quota is None else cores[: max(1, math.ceil(quota))]


def manifest_of(bundle: Bundle, role: str) -> EngineManifest:
    """Raises UsageError for the draft of a bundle without one."""
    manifest = bundle.draft if role == DRAFT else bundle.target
    if manifest is None:
        raise UsageError(f"{bundle.path} has no draft; rebuild it with --draft NAME")
    return manifest


def onnx_runner(path: Path, num_threads: int) -> Any:
    """polygraphy's OnnxrtRunner over a graph of ours, with the options that the runtime sets.

    It hands every cache in and out, a copy each way. Raises MissingDependencyError, BackendError.
    """
    purpose = "running an engine on ONNX Runtime"
    onnxruntime = require("onnxruntime", "onnxruntime", "cpu", purpose, ("InferenceSession",))
    from polygraphy.backend.onnxrt import OnnxrtRunner

    from runtime.backends.cpu_kernels import session_options

    options = session_options(onnxruntime, num_threads)
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise BackendError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    return OnnxrtRunner(session, name=ONNXRUNTIME)


def why_no_plan(manifest: EngineManifest) -> str | None:
    """Why the engine's plan cannot be run on this machine, in half a sentence; None when it can."""
    assert manifest.plan is not None
    gpu = local_gpu()
    if gpu is None:
        return f"running its {manifest.backend} plan needs an NVIDIA GPU, and none can be used here"
    if gpu.capability not in manifest.plan.capabilities:
        built = ", ".join(manifest.plan.capabilities)
        return (
            f"its plan was compiled for compute capability {built}, and this machine's {gpu.name} "
            f"has {gpu.capability} (rebuild with --compute-capability {gpu.capability})"
        )
    return None


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A deserialised engine. ``engine`` is TensorRT's, ``messages`` what TensorRT says."""

    manifest: EngineManifest
    facts: PlanFacts
    engine: Any
    messages: Messages
    vendor: vendors.Vendor

    def runner(self, profile: int) -> Any:
        """polygraphy's TrtRunner at one profile; caches are updated where they lie."""
        from polygraphy.backend.trt import TrtRunner

        return TrtRunner(self.engine, name=self.manifest.backend, optimization_profile=profile)

    def explain(self, error: Exception) -> BackendError:
        """What went wrong in a run, in the words of our layers or of TensorRT."""
        refused = layers.refusals(self.vendor.module)
        reason = refused[0] if refused else self.messages.reason
        return BackendError(f"the {self.manifest.role} plan failed: {reason} ({error})")


def open_plan(bundle: Bundle, role: str) -> OpenPlan:
    """The plan of one engine, its plugin layers registered first, to run by their reference.

    Needs a GPU (``why_no_plan``). Raises MissingDependencyError, BackendError,
    BundleIncompatibleError for a plan of another version.
    """
    manifest = manifest_of(bundle, role)
    assert manifest.plan is not None
    if reason := why_no_plan(manifest):
        raise BackendError(f"{bundle.path}: {reason}")
    facts = manifest.plan
    vendor = vendors.load(manifest.backend)
    if facts.builder != vendor.builder:
        raise BundleIncompatibleError(
            f"{bundle.path} was compiled by {facts.builder}, {vendor.builder} is installed, and a "
            f"plan is read by its own version only; rebuild: {bundle.manifest.rebuild}"
        )
    point_polygraphy_at(rtx=vendor.is_rtx)
    layers.register(vendor.module, ReferenceLauncher())
    layers.require(vendor.module, facts.plugins)
    logger, messages = logger_for(vendor.module)
    messages.clear()
    plan = bundle.plan_path(role)
    assert plan is not None
    engine = vendor.module.Runtime(logger).deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        raise BackendError(f"{vendor.builder} cannot read {plan}: {messages.reason}")
    return OpenPlan(manifest, facts, engine, messages, vendor)


def on_device(array: np.ndarray, dtype: DType, memory: ExitStack) -> Any:
    """``array`` as a DeviceArray, freed with ``memory``. For bfloat16, which numpy lacks, give
    float16 zeros: they are zeros in any type.

    (TrtRunner returns views of the caches, and polygraphy can make one of a DeviceArray only.)
    """
    from polygraphy.cuda import DeviceArray
    from polygraphy.datatype import DataType

    copied = memory.enter_context(DeviceArray(array.shape, getattr(DataType, dtype.name)))
    copied.copy_from(np.ascontiguousarray(array))
    return copied


def host_type(dtype: DType) -> np.dtype:
    """What to fill on the host for ``on_device``."""
    return DType.FLOAT16.numpy if dtype is DType.BFLOAT16 else dtype.numpy


def point_polygraphy_at(*, rtx: bool) -> None:
    """Let polygraphy drive TensorRT-RTX, or standard TensorRT.

    Each of its modules asks a setting, while it is imported, which of the two to import later as
    ``trt``. Those that have asked already are told again.
    """
    from polygraphy import config
    from polygraphy.mod.trt_importer import lazy_import_trt

    config.USE_TENSORRT_RTX = rtx
    for name, module in list(sys.modules.items()):
        is_users = name.startswith("polygraphy.") and name != "polygraphy.backend"
        if is_users and "trt" in vars(module):
            vars(module)["trt"] = lazy_import_trt()
