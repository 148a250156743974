"""A plan's bundle in a folder: graphs, compiled where the backend wants it, and manifests."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from engines.bundle import (
    CHAT_TEMPLATE_FILE,
    MODEL_FILE,
    TOKENIZER_FILE,
    VOCAB_MAP_FILE,
    open_bundle,
    seal_bundle,
    seal_engine,
)
from engines.fidelity import WeightFidelity
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
from export.build.pair import draft_figures
from export.build.plan import BuildPlan
from export.build.progress import Reporter
from export.checkpoint.api import Checkpoint
from export.checkpoint.weights import EMBEDDING
from export.graph.api import DATA_FILE, GraphRequest, GraphResult, Progress

BuildGraph = Callable[[GraphRequest, Progress], GraphResult]


def write_bundle(
    plan: BuildPlan, folder: Path, build_graph: BuildGraph, reporter: Reporter
) -> None:
    """Write and seal the bundle of ``plan`` into an empty folder."""
    for role in plan.roles:
        _build_engine(plan, role, folder / role, build_graph, reporter)
    _write_pair(plan, folder)


def write_fidelity(folder: Path, measured: Mapping[str, WeightFidelity]) -> None:
    """Add what was measured, by role, to a sealed bundle."""
    bundle = open_bundle(folder)
    for engine in bundle.engines:
        if engine.role in measured:
            changed = dataclasses.replace(engine, fidelity=measured[engine.role])
            seal_engine(folder / engine.role, changed)
    seal_bundle(folder, bundle.manifest)


def stored_types(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The types that a checkpoint's weights are stored in, that of most tensors first."""
    counts = Counter(map(checkpoint.stored_dtype, checkpoint.tensor_names()))
    return tuple(name for name, _ in counts.most_common())


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
    options, target, view = plan.options, plan.target, plan.view(role)
    vocab_map, embedding = None, None
    if plan.draft is not None and role == DRAFT:
        vocab_map = plan.draft.vocab_map
        if view.spec.embeddings_from_target:

            def embedding() -> np.ndarray:
                return target.tensor(EMBEDDING)[: view.spec.vocab_size]

    return GraphRequest(
        role=role,
        spec=view.spec,
        tensor=view.tensor,
        names=view.checkpoint.tensor_names(),
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
        source=Source(named, plan.fingerprints[role], stored_types(plan.view(role).checkpoint)),
        builder=plan.versions,
        files=(),
    )


def _write_pair(plan: BuildPlan, folder: Path) -> None:
    """The tokenizer, the chat template and ``bundle.json`` around the engines."""
    options, checkpoint = plan.options, plan.target.checkpoint
    template = checkpoint.chat_template()
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
        special_tokens=checkpoint.special_tokens(),
        draft_figures=None if plan.draft is None else draft_figures(plan.draft.checkpoint),
        build_key=plan.key,
        rebuild=options.command(),
        files=(),
    )
    seal_bundle(folder, manifest)
