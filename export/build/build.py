"""The build itself: two graphs, compiled where the backend wants it, and one rename."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.bundle import (
    CHAT_TEMPLATE_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    VOCAB_MAP_FILE,
    Bundle,
    open_bundle,
    seal_bundle,
    seal_engine,
)
from engines.errors import BundleError
from engines.manifest import (
    DRAFT,
    SCHEMA,
    BundleManifest,
    EngineManifest,
    ModelFacts,
    Source,
)
from engines.profiles import length_buckets
from export.build.compiled import compile_plan
from export.build.options import BuildOptions
from export.build.pair import draft_figures
from export.build.plan import BuildPlan, check_room, in_words, make_plan
from export.build.progress import Reporter, Silent
from export.build.writer import BundleWriter
from export.checkpoint.api import Checkpoint
from export.checkpoint.weights import EMBEDDING
from export.graph.api import DATA_FILE, GraphRequest, GraphResult, Progress
from export.packages import require

BuildGraph = Callable[[GraphRequest, Progress], GraphResult]
Verify = Callable[[Path, Checkpoint, Checkpoint | None], object]
"""Compares a bundle's engines with the target's and the draft's checkpoint; raises SsdError when
they differ."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The finished bundle. ``verification`` is what ``verify`` returned, None without one."""

    bundle: Bundle
    cache_hit: bool
    seconds: float
    verification: object


def build(
    options: BuildOptions,
    *,
    reporter: Reporter | None = None,
    build_graph: BuildGraph | None = None,
    verify: Verify | None = None,
) -> BuildResult:
    """Build the bundle that ``options`` ask for, or find that it is there already.

    ``options.place`` changes in one step, at the end: after any failure it is what it was. A
    second builder of the same place waits for the first. ``verify`` sees the new bundle before
    it is published. Raises UsageError, CheckpointError, PairError, MissingDependencyError,
    BackendError.
    """
    started = time.monotonic()
    reporter = reporter or Silent()
    plan = make_plan(options, reporter)
    place = options.place

    def waiting() -> None:
        reporter.say(f"another build of {place} is running; waiting for it")

    with BundleWriter(place, waiting) as writer:
        present = find_present(plan)
        if present is not None:
            reporter.say(f"{place} is up to date (cache hit, {plan.key[:12]}); nothing to build")
            verification = _verified(plan, place, verify)
            return BuildResult(present, True, time.monotonic() - started, verification)
        check_room(plan, reporter)
        staged = writer.stage()
        for role in plan.roles:
            _build_engine(plan, role, staged / role, build_graph or _build_graph(), reporter)
        _write_pair(plan, staged)
        verification = _verified(plan, staged, verify)
        writer.publish()
    bundle = open_bundle(place)
    reporter.say(f"{place} is ready: {in_words(bundle.num_bytes)}")
    return BuildResult(bundle, False, time.monotonic() - started, verification)


def _verified(plan: BuildPlan, folder: Path, verify: Verify | None) -> object:
    if verify is None:
        return None
    return verify(folder, plan.target, None if plan.draft is None else plan.draft.checkpoint)


def find_present(plan: BuildPlan) -> Bundle | None:
    """The bundle that ``plan`` would build, if it stands in its place already and is whole."""
    try:
        bundle = open_bundle(plan.options.place, hashes="all")
    except BundleError:
        return None
    return bundle if bundle.manifest.build_key == plan.key else None


def _build_engine(
    plan: BuildPlan, role: str, folder: Path, build_graph: BuildGraph, reporter: Reporter
) -> None:
    request = _request(plan, role)

    def progress(what: str, done: int, total: int) -> None:
        reporter.step(f"{role} {what}", done, total)

    result = build_graph(request, progress)
    folder.mkdir()
    result.save(folder)
    if request.vocab_map is not None:
        np.save(folder / VOCAB_MAP_FILE, request.vocab_map)
    manifest = _engine_manifest(plan, request, result)
    if plan.compiler is not None:
        compiled = compile_plan(plan.compiler, manifest, folder, reporter)
        manifest = dataclasses.replace(manifest, plan=compiled)
        if not plan.options.keep_onnx:
            for name in (MODEL_FILE, DATA_FILE):
                (folder / name).unlink(missing_ok=True)
    seal_engine(folder, manifest)


def _request(plan: BuildPlan, role: str) -> GraphRequest:
    options, target, draft = plan.options, plan.target, plan.draft
    source: Checkpoint = target
    spec, tensor, vocab_map, embedding = target.spec, target.tensor, None, None
    if role == DRAFT:
        assert draft is not None
        source, spec, tensor = draft.checkpoint, draft.spec, draft.tensor
        vocab_map = draft.vocab_map
        if spec.embeddings_from_target:

            def embedding() -> np.ndarray:
                return target.tensor(EMBEDDING)

    return GraphRequest(
        role=role,
        spec=spec,
        tensor=tensor,
        names=source.tensor_names(),
        limits=options.limits,
        kv=plan.kv_layout(role),
        precision=options.precision,
        block=options.block,
        backend=options.backend,
        vocab_map=vocab_map,
        embedding=embedding,
    )


def _engine_manifest(plan: BuildPlan, request: GraphRequest, result: GraphResult) -> EngineManifest:
    spec, role = request.spec, request.role
    named = plan.options.draft if role == DRAFT else plan.options.target
    assert named is not None
    return EngineManifest(
        schema=SCHEMA,
        role=role,
        backend=request.backend,
        precision=request.precision,
        model=ModelFacts(
            family=spec.family,
            num_parameters=result.num_parameters,
            vocab_size=spec.vocab_size,
            output_vocab=spec.draft_vocab_size or spec.vocab_size,
            hidden_size=spec.hidden_size,
            num_layers=spec.num_layers,
            num_heads=spec.num_heads,
            eos_token_ids=spec.eos_token_ids,
            bos_token_id=spec.bos_token_id,
        ),
        limits=request.limits,
        kv=request.kv,
        lengths=length_buckets(request.kv.rows),
        inputs=result.inputs,
        outputs=result.outputs,
        plugins=result.plugins,
        vocab_map=VOCAB_MAP_FILE if request.vocab_map is not None else None,
        plan=None,
        source=Source(named, plan.fingerprints[role]),
        builder=plan.versions,
        files=(),
    )


def _write_pair(plan: BuildPlan, folder: Path) -> None:
    """The tokenizer, the chat template and ``bundle.json`` around the engines."""
    options, template = plan.options, plan.target.chat_template()
    (folder / TOKENIZER_FILE).write_bytes(plan.tokenizer)
    if template is not None:
        (folder / CHAT_TEMPLATE_FILE).write_text(template, encoding="utf-8")
    manifest = BundleManifest(
        schema=SCHEMA,
        name=options.place.resolve().name,
        backend=options.backend,
        precision=options.precision,
        limits=options.limits,
        has_draft=plan.draft is not None,
        tokenizer=TOKENIZER_FILE,
        chat_template=None if template is None else CHAT_TEMPLATE_FILE,
        special_tokens=plan.target.special_tokens(),
        draft_figures=None if plan.draft is None else draft_figures(plan.draft.checkpoint),
        build_key=plan.key,
        rebuild=options.command(),
        files=(),
    )
    seal_bundle(folder, manifest)


def _build_graph() -> BuildGraph:
    for module, package in (("onnx", "onnx"), ("onnx_ir", "onnx-ir")):
        require(module, package, "export", "building a bundle")
    from export.graph.api import build_graph

    return build_graph
