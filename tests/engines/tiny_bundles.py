"""Bundles of a few hundred bytes whose engines are not real: enough for everything but running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from engines.border import graph_inputs, graph_outputs
from engines.bundle import (
    PLAN_FILE,
    VOCAB_MAP_FILE,
    Bundle,
    open_bundle,
    seal_bundle,
    seal_engine,
)
from engines.manifest import (
    DRAFT,
    SCHEMA,
    TARGET,
    BundleManifest,
    DraftFigures,
    EngineManifest,
    KvLayout,
    Limits,
    ModelFacts,
    PlanFacts,
    Source,
)
from engines.profiles import length_buckets, shape_profiles
from engines.tensors import DType

LIMITS = Limits(max_len=96, max_batch=2, num_draft=4, max_branches=8)
REBUILD = (
    "python -m export build --target big --draft small --backend onnxruntime "
    "--precision fp32 --max-len 96 --max-batch 2 --num-draft 4 --max-branches 8 --out b"
)
REBUILD_COMPILED = (
    "python -m export build --target big --draft small --backend tensorrt-rtx --precision fp16 "
    "--compute-capability 8.9 12.0 --max-len 96 --max-batch 2 --num-draft 4 --max-branches 8 "
    "--out b"
)
BUILDER = "tensorrt-rtx 1.7.1.116"
DATA = bytes(range(256)) * 8


def engine_manifest(role: str) -> EngineManifest:
    scratch = LIMITS.num_draft * LIMITS.max_branches if role == DRAFT else 0
    kv = KvLayout(2, 2, 8, DType.FLOAT32, scratch_rows=scratch, trunk_rows=112)
    return EngineManifest(
        schema=SCHEMA,
        role=role,
        backend="onnxruntime",
        precision="fp32",
        model=ModelFacts("llama", 1000, 64, 64 if role == TARGET else 48, 32, 2, 4, (2,), 1),
        limits=LIMITS,
        kv=kv,
        lengths=length_buckets(kv.rows),
        inputs=graph_inputs(role, kv, "L"),
        outputs=graph_outputs(role, kv, "L", 64),
        plugins=("ssd::Verify",) if role == TARGET else (),
        vocab_map=VOCAB_MAP_FILE if role == DRAFT else None,
        plan=None,
        source=Source("big", "0" * 64),
        builder={"numpy": "2"},
        files=(),
    )


def bundle_manifest(*, draft: bool) -> BundleManifest:
    return BundleManifest(
        schema=SCHEMA,
        name="tiny",
        backend="onnxruntime",
        precision="fp32",
        limits=LIMITS,
        has_draft=draft,
        tokenizer="tokenizer.json",
        chat_template="chat_template.jinja",
        special_tokens={"eos_token": "</s>"},
        draft_figures=DraftFigures((0.5, 0.25)) if draft else None,
        build_key="k" * 64,
        rebuild=REBUILD,
        files=(),
    )


def write_bundle(folder: Path, *, draft: bool = True, key: str = "k" * 64) -> Path:
    """Write a whole, sealed bundle into ``folder`` (new) and return it."""
    for role in (TARGET, DRAFT) if draft else (TARGET,):
        (folder / role).mkdir(parents=True)
        (folder / role / "model.onnx").write_bytes(b"graph of " + role.encode())
        (folder / role / "model.onnx.data").write_bytes(DATA)
        if role == DRAFT:
            np.save(folder / role / VOCAB_MAP_FILE, np.arange(48, dtype=np.int32))
        seal_engine(folder / role, engine_manifest(role))
    (folder / "tokenizer.json").write_text('{"model": {}}', encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    seal_bundle(folder, replace(bundle_manifest(draft=draft), build_key=key))
    return folder


def opened(folder: Path, *, draft: bool = True) -> Bundle:
    return open_bundle(write_bundle(folder, draft=draft))


def plan_facts(role: str) -> PlanFacts:
    rows = engine_manifest(role).kv.rows
    profiles = shape_profiles(role, max_batch=2, num_draft=4, max_branches=8, rows=rows)
    plugins = ("ssd::Verify@1",) if role == TARGET else ("ssd::Sample@1",)
    return PlanFacts(PLAN_FILE, BUILDER, ("8.9", "12.0"), profiles, plugins)


def write_compiled(folder: Path, *, keep_onnx: bool = True) -> Path:
    """As ``write_bundle``, a pair whose engines are compiled by TensorRT-RTX."""
    for role in (TARGET, DRAFT):
        (folder / role).mkdir(parents=True)
        (folder / role / PLAN_FILE).write_bytes(b"plan of " + role.encode())
        if keep_onnx:
            (folder / role / "model.onnx").write_bytes(b"graph of " + role.encode())
            (folder / role / "model.onnx.data").write_bytes(DATA)
        if role == DRAFT:
            np.save(folder / role / VOCAB_MAP_FILE, np.arange(48, dtype=np.int32))
        compiled = {"backend": "tensorrt-rtx", "precision": "fp16", "plan": plan_facts(role)}
        seal_engine(folder / role, replace(engine_manifest(role), **compiled))
    (folder / "tokenizer.json").write_text('{"model": {}}', encoding="utf-8")
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    compiled = {"backend": "tensorrt-rtx", "precision": "fp16", "rebuild": REBUILD_COMPILED}
    seal_bundle(folder, replace(bundle_manifest(draft=True), **compiled))
    return folder
