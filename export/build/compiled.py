"""The TensorRT part of a build: what compiles the engines, for which GPUs, and how."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from engines.bundle import MODEL_FILE, PLAN_FILE
from engines.cachedir import cache_dir
from engines.manifest import EngineManifest, PlanFacts
from engines.profiles import ShapeProfile, shape_profiles
from export.build.options import GPU_BACKENDS, BuildOptions
from export.build.progress import Reporter
from export.tensorrt.cache import EngineCache, EngineFacts, engine_key
from export.tensorrt.capabilities import choose_capabilities, local_gpu
from export.tensorrt.graph_file import read_graph
from export.tensorrt.process import CompileRequest, compile_in_process
from export.tensorrt.vendor import load
from plugins import tensorrt as plugins

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Compiler:
    """What compiles the engines of a build, all of which decides the content of a plan.

    ``device`` is the GPU's name when plans fit only that one (standard TensorRT).
    """

    vendor: str
    builder: str
    capabilities: tuple[str, ...]
    device: str | None
    plugins: str

    @property
    def identity(self) -> str:
        return self.builder if self.device is None else f"{self.builder} on {self.device}"


def find_compiler(options: BuildOptions) -> Compiler | None:
    """The compiler that ``options`` ask for; None when their backend runs the graph itself.

    Raises MissingDependencyError, BackendError, and UsageError for a capability that it, or the
    precision, does not have.
    """
    if options.backend not in GPU_BACKENDS:
        return None
    vendor = load(options.backend)
    gpu = None if vendor.is_rtx else local_gpu()
    return Compiler(
        vendor=vendor.name,
        builder=vendor.builder,
        capabilities=choose_capabilities(vendor, options.capabilities, options.precision, gpu),
        device=None if gpu is None else gpu.name,
        plugins=plugins.digest(),
    )


def plan_bytes(weight_bytes: int, num_layers: int) -> int:
    """About the size of a plan of three profiles. (Fitted to engines of 2 and 30 layers.)"""
    return weight_bytes + 8 * MIB + num_layers * MIB * 3 // 4


def compile_bytes(weight_bytes: int, num_layers: int) -> int:
    """About the memory at the peak of compiling: the weights four times, and the compiler's own."""
    return 4 * weight_bytes + 200 * MIB + num_layers * 12 * MIB


def engine_profiles(engine: EngineManifest) -> tuple[ShapeProfile, ...]:
    """The shapes that an engine of these limits is called with."""
    limits = engine.limits
    profiles = shape_profiles(
        engine.role,
        max_batch=limits.max_batch,
        num_draft=limits.num_draft,
        max_branches=limits.max_branches,
        rows=engine.kv.rows,
    )
    # From one row on: TensorRT-RTX 1.7 fails on a narrow range ("more than one op named ..._iota").
    return tuple(
        dataclasses.replace(profile, length=dataclasses.replace(profile.length, least=1))
        for profile in profiles
    )


def compile_plan(
    compiler: Compiler, engine: EngineManifest, folder: Path, reporter: Reporter
) -> PlanFacts:
    """Write ``engine.plan`` beside the graph in ``folder``: compiled, or from the engine cache.

    Raises UnsupportedModelError, UsageError, BackendError and OSError.
    """
    started = time.monotonic()
    profiles = engine_profiles(engine)
    cache = EngineCache(note=reporter.say)
    key = engine_key(
        folder,
        compiler.identity,
        engine.precision,
        compiler.capabilities,
        profiles,
        compiler.plugins,
    )
    facts = PlanFacts(
        file=PLAN_FILE,
        builder=compiler.builder,
        capabilities=compiler.capabilities,
        profiles=profiles,
        plugins=read_graph(folder / MODEL_FILE).plugins,
    )
    path = folder / PLAN_FILE
    plan = cache.get(key)
    if plan is not None:
        path.write_bytes(plan)
        reporter.say(f"{engine.role} engine: from the cache ({key[:12]})")
        return facts
    request = CompileRequest(
        vendor=compiler.vendor,
        onnx_path=str(folder / MODEL_FILE),
        plan_path=str(path),
        profiles=profiles,
        capabilities=compiler.capabilities,
        precision=engine.precision,
        plugins=facts.plugins,
        timing_cache=_timing_cache(compiler),
    )
    compile_in_process(
        request, lambda what, done, total: reporter.step(f"{engine.role} {what}", done, total)
    )
    about = EngineFacts(
        engine.source.name, compiler.vendor, engine.precision, compiler.capabilities
    )
    cache.put(key, path.read_bytes(), about)
    seconds = time.monotonic() - started
    reporter.say(
        f"{engine.role} engine: compiled by {compiler.builder} for "
        f"{' '.join(compiler.capabilities)} in {seconds:.1f} s; "
        f"shapes: {', '.join(profile.name for profile in profiles)}"
    )
    return facts


def _timing_cache(compiler: Compiler) -> str | None:
    """Where kernel times measured on this GPU are kept; TensorRT-RTX measures none."""
    if compiler.device is None:
        return None
    name = "-".join(compiler.identity.split()).replace("/", "-")
    return str(cache_dir() / "timing" / f"{name}.cache")
