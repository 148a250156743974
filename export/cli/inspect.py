"""``python -m export inspect``: what a bundle holds, whether it is whole, what it will need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.bundle import Bundle, open_bundle
from engines.codec import encode
from engines.errors import escaped
from engines.manifest import EngineManifest, PlanFacts
from engines.profiles import ShapeProfile, Span
from export.build.options import GPU_BACKENDS
from export.build.plan import in_words
from export.check.fidelity import in_words as fidelity_in_words
from export.cli.console import add_output_options, emit, emit_json

if TYPE_CHECKING:
    from export.cli.console import Parser

DESCRIPTION = """\
Show a bundle's models, limits, files and the memory that running it takes. Every file's size and
hash is checked; a damaged bundle is an error."""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "inspect",
        prog="python -m export inspect",
        help="show and check a bundle",
        description=DESCRIPTION,
        epilog="example:\n  python -m export inspect engines/bundles/demo",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    add_output_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    bundle = open_bundle(args.bundle, hashes="all")
    if args.json:
        emit_json(facts(bundle))
    else:
        emit(text(bundle))
    return 0


def facts(bundle: Bundle) -> dict[str, object]:
    """Everything the manifests say, and the memory that follows from it, as JSON values."""
    manifest = encode(bundle.manifest)
    assert isinstance(manifest, dict)
    return {
        "bundle": str(bundle.path),
        **manifest,
        "num_bytes": bundle.num_bytes,
        "hashes_checked": True,
        "engines": {engine.role: encode(engine) for engine in bundle.engines},
        "memory": {engine.role: memory(engine) for engine in bundle.engines},
    }


def memory(engine: EngineManifest) -> dict[str, object]:
    """Bytes of the weights, and of the caches of all slots at each number of rows they grow to.

    A compiled engine's caches have their full size from the start.
    """
    row = engine.kv.bytes_per_row * engine.limits.max_batch
    return {
        "weight_bytes": loaded_bytes(engine),
        "kv_bytes_by_rows": {str(rows): rows * row for rows in _cache_rows(engine)},
        "total_bytes": total_bytes(engine),
    }


def loaded_bytes(engine: EngineManifest) -> int:
    """What running an engine loads: its plan, or the graph and weights that it has instead."""
    if engine.plan is None:
        return engine.weight_bytes
    return sum(file.size for file in engine.files if file.path == engine.plan.file)


def total_bytes(engine: EngineManifest) -> int:
    return loaded_bytes(engine) + engine.kv.bytes_for(engine.limits.max_batch)


def _cache_rows(engine: EngineManifest) -> tuple[int, ...]:
    return engine.lengths if engine.plan is None else (engine.kv.rows,)


def text(bundle: Bundle) -> str:
    """The same for people."""
    manifest, limits = bundle.manifest, bundle.manifest.limits
    size, batch = in_words(bundle.num_bytes), limits.max_batch
    template = manifest.chat_template or "no chat template (generate --chat will be refused)"
    branches = "" if bundle.draft is None else f", W {limits.max_branches}"
    drafting = f"K {limits.num_draft}{branches}"
    lines = [
        f"{bundle.path}: {manifest.precision}, {manifest.backend}, {size}, all hashes checked",
        f"limits   {limits.max_len} tokens, batch {batch}, {drafting}",
        f"text     {manifest.tokenizer}, {template}",
    ]
    for engine in bundle.engines:
        lines += _engine_lines(engine)
    if manifest.draft_figures is not None:
        shares = ", ".join(f"{share:.2f}" for share in manifest.draft_figures.ranks[:4])
        lines.append(f"         its maker measured: target's token is candidate 1, 2, ... {shares}")
    if bundle.draft is None:
        lines.append(f"draft    none: {without_draft(limits.num_draft, manifest.backend)}")
    total = sum(total_bytes(engine) for engine in bundle.engines)
    lines += [
        "",
        f"memory   {in_words(total)} with full caches; what a call works with comes on top",
    ]
    for engine in bundle.engines:
        lines.append(f"{engine.role:8} weights {in_words(loaded_bytes(engine))}; caches by rows:")
        row = engine.kv.bytes_per_row * batch
        sizes = (f"{rows}: {in_words(rows * row)}" for rows in _cache_rows(engine))
        lines.append("         " + ", ".join(sizes))
    lines += ["", f"{'size':>12}  {'sha256':16}  file"]
    for role, files in [("", manifest.files), *((f"{e.role}/", e.files) for e in bundle.engines)]:
        lines += [f"{f.size:12}  {f.sha256[:16]}  {role}{f.path}" for f in files]
    lines += ["", f"rebuild  {manifest.rebuild}", f"key      {manifest.build_key}"]
    return "".join(f"{escaped(line)}\n" for line in lines)


def without_draft(num_draft: int, backend: str) -> str:
    """What the runtime makes of a bundle without a draft, for people."""
    if num_draft == 0:
        return "mode ar (--num-draft 0 leaves no room for lookups)"
    if backend in GPU_BACKENDS:
        return "mode ar (lookups are for engines on the CPU)"
    return f"modes ar and sd, which copies up to {num_draft} tokens a round from the text"


def _engine_lines(engine: EngineManifest) -> list[str]:
    model, kv = engine.model, engine.kv
    speaks = f"{model.vocab_size} tokens"
    if model.output_vocab != model.vocab_size:
        speaks = f"{model.output_vocab} of {speaks}"
    size = f"{model.num_parameters / 1e6:.1f} M parameters, {model.num_layers} layers"
    rows = f"{kv.scratch_rows} + {kv.trunk_rows} rows of {kv.bytes_per_row} bytes a slot"
    stored = ", ".join(engine.source.stored) or "unknown"
    operators = f", operators {', '.join(engine.plugins)}" if engine.plugins else ""
    return [
        f"{engine.role:8} {model.family}, {size}, {speaks}, from {engine.source.name}",
        f"         stored as {stored}, computed in {kv.dtype.value}",
        f"         cache {rows}{operators}",
        *_fidelity_lines(engine),
        *([] if engine.plan is None else _plan_lines(engine, engine.plan)),
    ]


def _fidelity_lines(engine: EngineManifest) -> list[str]:
    return [] if engine.fidelity is None else [f"         {fidelity_in_words(engine.fidelity)}"]


def _plan_lines(engine: EngineManifest, plan: PlanFacts) -> list[str]:
    size, gpus = in_words(loaded_bytes(engine)), " ".join(plan.capabilities)
    return [
        f"         {plan.file} {size}, by {plan.builder}, which alone can read it",
        f"         for compute capability {gpus}; plugins {', '.join(plan.plugins) or 'none'}",
        *(f"         profile {_profile_text(profile)}" for profile in plan.profiles),
    ]


def _profile_text(profile: ShapeProfile) -> str:
    """For example: verify   batch 1-4 (4), tokens 2-5 (5), logits 2-5 (5), rows 64-1040 (512)."""
    spans = (
        ("batch", profile.batch),
        ("tokens", profile.tokens),
        ("logits", profile.logits),
        ("rows", profile.length),
    )
    return f"{profile.name:8} " + ", ".join(f"{name} {_span_text(span)}" for name, span in spans)


def _span_text(span: Span) -> str:
    """The range, and the value that kernels were chosen for."""
    if span.least == span.most:
        return str(span.most)
    return f"{span.least}-{span.most} ({span.typical})"
