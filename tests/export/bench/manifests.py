"""Engine manifests of any limits, without an engine."""

from __future__ import annotations

from dataclasses import replace

from engines.border import graph_inputs, graph_outputs
from engines.manifest import DRAFT, EngineManifest, KvLayout, Limits, PlanFacts
from engines.profiles import length_buckets, shape_profiles, trunk_rows
from engines.tensors import DType
from tests.engines.tiny_bundles import engine_manifest


def manifest_for(
    role: str, limits: Limits, *, compiled: bool = False, dtype: DType = DType.FLOAT32
) -> EngineManifest:
    """As a build would write it; ``compiled``: with a plan's facts and a cache of fixed rows."""
    kv = KvLayout(
        num_layers=2,
        num_kv_heads=2,
        head_dim=8,
        dtype=dtype,
        scratch_rows=limits.num_draft * limits.max_branches if role == DRAFT else 0,
        trunk_rows=trunk_rows(limits.max_len, limits.num_draft),
    )
    profiles = shape_profiles(
        role,
        max_batch=limits.max_batch,
        num_draft=limits.num_draft,
        max_branches=limits.max_branches,
        rows=kv.rows,
    )
    plan = PlanFacts("engine.plan", "tensorrt-rtx 1.7.1.116", ("8.9",), profiles, ())
    rows = kv.rows if compiled else "L"
    return replace(
        engine_manifest(role),
        backend="tensorrt-rtx" if compiled else "onnxruntime",
        limits=limits,
        kv=kv,
        lengths=length_buckets(kv.rows),
        inputs=graph_inputs(role, kv, rows),
        outputs=graph_outputs(role, kv, rows, 64),
        plan=plan if compiled else None,
    )
