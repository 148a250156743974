"""``python -m export inspect``: what a bundle holds, whether it is whole, what it will need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.bundle import Bundle, open_bundle
from engines.codec import encode
from engines.manifest import EngineManifest
from export.build.plan import in_words
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
    """Bytes of the weights, and of the caches of all slots at each number of rows they grow to."""
    row = engine.kv.bytes_per_row * engine.limits.max_batch
    return {
        "weight_bytes": engine.weight_bytes,
        "kv_bytes_by_rows": {str(rows): rows * row for rows in engine.lengths},
        "total_bytes": engine.weight_bytes + engine.kv.bytes_for(engine.limits.max_batch),
    }


def text(bundle: Bundle) -> str:
    """The same for people."""
    manifest, limits = bundle.manifest, bundle.manifest.limits
    size, batch = in_words(bundle.num_bytes), limits.max_batch
    template = manifest.chat_template or "no chat template (generate --chat will be refused)"
    drafting = f"K {limits.num_draft}, W {limits.max_branches}"
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
        lines.append("draft    none")
    total = sum(e.weight_bytes + e.kv.bytes_for(batch) for e in bundle.engines)
    lines += [
        "",
        f"memory   {in_words(total)} with full caches; what a call works with comes on top",
    ]
    for engine in bundle.engines:
        lines.append(f"{engine.role:8} weights {in_words(engine.weight_bytes)}; caches by rows:")
        row = engine.kv.bytes_per_row * batch
        lines.append("         " + ", ".join(f"{n}: {in_words(n * row)}" for n in engine.lengths))
    lines += ["", f"{'size':>12}  {'sha256':16}  file"]
    for role, files in [("", manifest.files), *((f"{e.role}/", e.files) for e in bundle.engines)]:
        lines += [f"{f.size:12}  {f.sha256[:16]}  {role}{f.path}" for f in files]
    lines += ["", f"rebuild  {manifest.rebuild}", f"key      {manifest.build_key}"]
    return "\n".join(lines) + "\n"


def _engine_lines(engine: EngineManifest) -> list[str]:
    model, kv = engine.model, engine.kv
    speaks = f"{model.vocab_size} tokens"
    if model.output_vocab != model.vocab_size:
        speaks = f"{model.output_vocab} of {speaks}"
    size = f"{model.num_parameters / 1e6:.1f} M parameters, {model.num_layers} layers"
    rows = f"{kv.scratch_rows} + {kv.trunk_rows} rows of {kv.bytes_per_row} bytes a slot"
    operators = f", operators {', '.join(engine.plugins)}" if engine.plugins else ""
    return [
        f"{engine.role:8} {model.family}, {size}, {speaks}, from {engine.source.name}",
        f"         cache {rows}{operators}",
    ]
