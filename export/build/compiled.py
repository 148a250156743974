"""The TensorRT part of a build: what compiles the engines, for which GPUs, and how."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from engines.bundle import MODEL_FILE, PLAN_FILE
from engines.cachedir import cache_dir
from engines.errors import BackendError
from engines.manifest import EngineManifest, PlanFacts
from engines.profiles import shape_profiles
from export.build.options import GPU_BACKENDS, BuildOptions
from export.build.progress import Reporter
from export.tensorrt.cache import EngineCache, EngineFacts, engine_key
from export.tensorrt.capabilities import choose_capabilities, local_gpu
from export.tensorrt.graph_file import read_graph
from export.tensorrt.plan_header import contradiction
from export.tensorrt.process import CompileRequest, compile_in_process
from export.tensorrt.vendor import RTX, load
from plugins import tensorrt as plugins


@dataclass(frozen=True, slots=True)
class Compiler:
    """What compiles the engines of a build, all of which decides the content of a plan.

    ``device`` is the GPU's name when plans fit only that one (standard TensorRT).
    """

    vendor: str
    builder: str
    capabilities: tuple[str, ...]
    device: str | None
    plugin_digest: str

    @property
    def identity(self) -> str:
        return self.builder if self.device is None else f"{self.builder} on {self.device}"


def find_compiler(options: BuildOptions) -> Compiler | None:
    """The compiler that ``options`` ask for; None when their backend runs the graph itself.

    Raises MissingDependencyError, BackendError, and UsageError for a capability that it, or the
    precision, does not have, and for a size of the engine cache that is none.
    """
    if options.backend not in GPU_BACKENDS:
        return None
    EngineCache()  # refuses a wrong size now, not when the graph is written
    vendor = load(options.backend)
    gpu = None if vendor.is_rtx else local_gpu()
    return Compiler(
        vendor=vendor.name,
        builder=vendor.builder,
        capabilities=choose_capabilities(vendor, options.capabilities, options.precision, gpu),
        device=None if gpu is None else gpu.name,
        plugin_digest=plugins.digest(),
    )


def num_kept(compiler: Compiler, source: str, precision: str) -> int:
    """Engines of the checkpoint ``source`` in the engine cache, compiled alike for the same GPUs.

    Which of them a build needs shows only when its graph is written. 0 for a cache that cannot
    be read.
    """
    about = EngineFacts(source, compiler.vendor, precision, compiler.capabilities)
    try:
        return sum(entry.facts == about for entry in EngineCache().entries())
    except OSError:
        return 0


def compile_plan(
    compiler: Compiler, engine: EngineManifest, folder: Path, reporter: Reporter
) -> PlanFacts:
    """Write ``engine.plan`` beside the graph in ``folder``: compiled, or from the engine cache.

    Raises UnsupportedModelError, UsageError, BackendError and OSError.
    """
    limits = engine.limits
    profiles = shape_profiles(
        engine.role,
        max_batch=limits.max_batch,
        num_draft=limits.num_draft,
        max_branches=limits.max_branches,
        rows=engine.kv.rows,
    )
    cache = EngineCache(note=reporter.say)
    key = engine_key(
        folder,
        compiler.identity,
        engine.precision,
        compiler.capabilities,
        profiles,
        compiler.plugin_digest,
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
    if plan is not None and (found := _contradiction(compiler, plan)):
        reporter.say(f"cached engine {key[:12]} is {found}; it will be compiled again")
        plan = None
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
    started = time.monotonic()
    try:
        compile_in_process(
            request, lambda what, done, total: reporter.step(f"{engine.role} {what}", done, total)
        )
    except BackendError as error:
        raise BackendError(f"{error}; {_settings(compiler, engine)}") from None
    seconds = time.monotonic() - started
    about = EngineFacts(
        engine.source.name, compiler.vendor, engine.precision, compiler.capabilities
    )
    cache.put(key, path.read_bytes(), about)
    reporter.say(
        f"{engine.role} engine: compiled by {compiler.builder} for "
        f"{' '.join(compiler.capabilities)} in {seconds:.1f} s; "
        f"shapes: {', '.join(profile.name for profile in profiles)}"
    )
    return facts


def _contradiction(compiler: Compiler, plan: bytes) -> str | None:
    """Only the header of a TensorRT-RTX plan is known."""
    if compiler.vendor != RTX:
        return None
    version = compiler.builder.removeprefix(f"{compiler.vendor} ")
    return contradiction(plan, version, compiler.capabilities)


def _settings(compiler: Compiler, engine: EngineManifest) -> str:
    """What a report of a compiler that failed, or ended its process, has to tell."""
    limits = engine.limits
    return (
        f"it was compiling the {engine.role} engine of {engine.source.name} in {engine.precision} "
        f"for {' '.join(compiler.capabilities)} with --max-len {limits.max_len} --max-batch "
        f"{limits.max_batch} --num-draft {limits.num_draft} --max-branches {limits.max_branches}"
    )


def _timing_cache(compiler: Compiler) -> str | None:
    """Where kernel times measured on this GPU are kept; TensorRT-RTX measures none."""
    if compiler.device is None:
        return None
    name = "-".join(compiler.identity.split()).replace("/", "-")
    return str(cache_dir() / "timing" / f"{name}.cache")
