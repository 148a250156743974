"""``python -m export build``: checkpoints to bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.codec import encode
from engines.errors import UsageError
from export.build.build import BuildResult, Measure, Verify, build, find_present
from export.build.compiled import num_kept
from export.build.options import (
    BLOCKS,
    DEFAULT_PLACE,
    GPU_BACKENDS,
    MAX_BRANCHES,
    MAX_DRAFT,
    PRECISIONS,
    BuildOptions,
    default_precision,
)
from export.build.plan import BuildPlan, check_room, in_words, make_plan
from export.cli.console import add_output_options, display, emit, emit_json
from export.cli.inspect import loaded_bytes, without_draft
from export.cli.verify import text as verification_text
from export.graph.precision import BACKENDS

if TYPE_CHECKING:
    from export.cli.console import Parser

DESCRIPTION = """\
Compile a target and, with --draft, a draft for it; without one the runtime looks drafts up in the
text (--num-draft at most). The bundle is a folder that can be moved and copied. It appears in one
step when it is complete; building the same again is a cache hit."""

EXAMPLES = """\
a checkpoint is one of
  a path        a Hugging Face folder (safetensors), or a .gguf file
  a name        fetched before: python -m export fetch NAME
  a hub id      ORG/NAME, downloaded from the model hub

examples:
  python -m export build --target smollm2-135m --draft smollm2-135m-draft --out engines/bundles/demo
  python -m export build --target models/Qwen3-0.6B --precision fp32 --max-len 4096 --verify
  python -m export build --target model.Q8_0.gguf --draft small.gguf --num-draft 6 --dry-run
  python -m export build --target smollm2-135m --draft smollm2-135m-draft \\
      --backend tensorrt-rtx --precision fp16 --compute-capability 8.9 12.0
"""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "build",
        prog="python -m export build",
        help="compile checkpoints into a bundle",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    option = parser.add_argument
    option("--target", required=True, metavar="CHECKPOINT", help="the model whose output you want")
    option(
        "--draft",
        default="none",
        metavar="CHECKPOINT",
        help="a small model that guesses ahead; none: build the target alone, whose drafts are "
        "looked up in the text (default)",
    )
    option(
        "--backend",
        default=BACKENDS[0],
        choices=BACKENDS,
        metavar="NAME",
        help=f"what runs the engines: {', '.join(BACKENDS)}. TensorRT engines are only built in "
        "this version; tensorrt-rtx compiles without a GPU, tensorrt on the one that will run them "
        "(default: %(default)s)",
    )
    option(
        "--precision",
        choices=PRECISIONS,
        help="onnxruntime: int8 (default; weights only, a quarter of the size, about twice as "
        "fast, close to fp32), fp32, or int4 (smallest; see the fidelity that the build prints). "
        "TensorRT: fp16 (default), bf16, fp32, or int8 and int4 for the weights of an fp16 engine",
    )
    option(
        "--block",
        type=int,
        default=0,
        choices=BLOCKS,
        help="int8 on onnxruntime, int4: weights that share a scale; 32 is closer to fp32, "
        "64 smaller and faster (default: 64; int4 on onnxruntime has 32 only)",
    )
    option(
        "--compute-capability",
        nargs="+",
        default=(),
        metavar="M.N",
        help="TensorRT: the GPUs to compile for, for example 8.9 12.0 (default: all that the "
        "compiler supports from 8.0 on; standard TensorRT compiles for the GPU of this machine)",
    )
    option(
        "--no-onnx",
        action="store_true",
        help="TensorRT: leave the graph out of the bundle once it is compiled; it is then half "
        "the size, and cannot be compared with another backend",
    )
    for name, default, metavar, text in (
        ("--max-len", 1024, "N", "longest text, prompt and answer together, in tokens"),
        ("--max-batch", 1, "B", "sequences decoded at once"),
        ("--num-draft", 4, "K", f"most tokens drafted a round, 0 to {MAX_DRAFT}"),
        ("--max-branches", 16, "W", f"most outcomes prepared ahead, 0 to {MAX_BRANCHES}"),
    ):
        help_text = f"{text} (default: %(default)s)"
        option(name, type=int, default=default, metavar=metavar, help=help_text)
    option(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"the bundle's folder (default: {DEFAULT_PLACE}/NAME-OF-THE-TARGET)",
    )
    option(
        "--verify",
        action="store_true",
        help="compare the target engine with its checkpoint before publishing (needs torch)",
    )
    option(
        "--no-fidelity",
        action="store_true",
        help="do not measure what int8 and int4 weights cost against fp32; it takes about twice as "
        "long as building, and is left out by itself for more than 600 M parameters",
    )
    option(
        "--dry-run", action="store_true", help="check everything, print the sizes, write nothing"
    )
    add_output_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    options = BuildOptions(
        target=args.target,
        draft=None if args.draft == "none" else args.draft,
        out=args.out,
        backend=args.backend,
        precision=args.precision or default_precision(args.backend),
        block=args.block,
        max_len=args.max_len,
        max_batch=args.max_batch,
        num_draft=args.num_draft,
        max_branches=args.max_branches,
        capabilities=tuple(args.compute_capability),
        keep_onnx=not args.no_onnx,
    )
    if args.verify and args.no_onnx:
        raise UsageError(
            "--verify runs the graph where no GPU runs the engine; leave --no-onnx out"
        )
    with display(args.quiet) as shown:
        if args.dry_run:
            plan = make_plan(options, shown)
            check_room(plan, shown)
        else:
            result = build(
                options,
                reporter=shown,
                verify=_verify(options) if args.verify else None,
                measure=None if args.no_fidelity else _measure(),
            )
    if args.dry_run:
        facts = _planned(plan)
        emit_json(facts) if args.json else emit(_plan_text(plan, facts))
    elif args.json:
        emit_json(_built(result))
    elif args.quiet:
        emit(f"{result.bundle.path}\n")
    elif result.verification is not None:
        from export.check.verify import Verification

        assert isinstance(result.verification, Verification)
        emit(verification_text(result.verification))
    elif options.backend in GPU_BACKENDS:
        emit(f"look at it: python -m export inspect {result.bundle.path}\n")
    else:
        if result.bundle.draft is None:
            emit(f"without a draft: {without_draft(options.num_draft, options.backend)}\n")
        emit(f"try it: python -m runtime generate --bundle {result.bundle.path} --prompt 'Hello'\n")
    return 0


def _verify(options: BuildOptions) -> Verify:
    from export.check.reference import require_transformers
    from export.check.runners import require_polygraphy
    from export.check.verify import verify_or_refuse

    require_transformers()  # now, not after minutes of building
    if options.backend in GPU_BACKENDS:
        require_polygraphy("comparing a compiled engine with its checkpoint")
    return verify_or_refuse


def _measure() -> Measure:
    from export.check.rounding import measure_rounding

    return measure_rounding


def _planned(plan: BuildPlan) -> dict[str, object]:
    return {
        "dry_run": True,
        "bundle": str(plan.options.place),
        "cache_hit": find_present(plan) is not None,
        "build_key": plan.key,
        "engines": {
            estimate.role: {
                "num_parameters": estimate.num_parameters,
                "file_bytes": estimate.file_bytes,
                "disk_bytes": estimate.disk_bytes,
                "kv_bytes": estimate.kv_bytes,
                "build_bytes": estimate.peak_bytes,
            }
            for estimate in plan.estimates()
        },
        "computed_in": plan.options.arithmetic.activation.value,
        "capabilities": list(plan.compiler.capabilities) if plan.compiler else [],
        "num_in_engine_cache": _num_kept(plan),
        "command": plan.options.command(),
    }


def _num_kept(plan: BuildPlan) -> dict[str, int]:
    """Of each engine's checkpoint, how many engines may be taken instead of compiling; by role."""
    options, compiler = plan.options, plan.compiler
    if compiler is None:
        return {}
    return {
        role: num_kept(compiler, source, options.precision)
        for role, source in (("target", options.target), ("draft", options.draft))
        if source is not None
    }


def _plan_text(plan: BuildPlan, facts: dict[str, object]) -> str:
    options = plan.options
    lines = [f"{options.place}: {options.target}"]
    if options.draft is not None:
        lines[0] += f" with draft {options.draft}"
    else:
        lines[0] += f" without a draft: {without_draft(options.num_draft, options.backend)}"
    lines += [
        f"  {estimate.role:6}  {estimate.num_parameters / 1e6:8.1f} M parameters, files about "
        + ", ".join(
            (
                in_words(estimate.disk_bytes),
                f"caches {in_words(estimate.kv_bytes)}",
                f"memory while building about {in_words(estimate.peak_bytes)}",
            )
        )
        for estimate in plan.estimates()
    ]
    lines.append(f"  {options.describe_precision}")
    if plan.compiler is not None:
        wanted = " ".join(plan.compiler.capabilities)
        lines.append(f"  compiled by {plan.compiler.identity} for compute capability {wanted}")
        kept = ", ".join(f"{count} of the {role}" for role, count in _num_kept(plan).items())
        lines.append(
            f"  in the engine cache for these GPUs, in {options.precision}: {kept}; one with the "
            "same limits is taken from there instead of being compiled"
        )
    lines.append("  already built: a cache hit" if facts["cache_hit"] else "  nothing written")
    return "\n".join(lines) + "\n"


def _built(result: BuildResult) -> dict[str, object]:
    bundle = result.bundle
    checked = result.verification
    return {
        "bundle": str(bundle.path),
        "cache_hit": result.cache_hit,
        "seconds": round(result.seconds, 3),
        "build_key": bundle.manifest.build_key,
        "num_bytes": bundle.num_bytes,
        "engines": {
            engine.role: {
                "num_parameters": engine.model.num_parameters,
                "weight_bytes": loaded_bytes(engine),
                "disk_bytes": engine.weight_bytes,
                "kv_bytes": engine.kv.bytes_for(engine.limits.max_batch),
                "stored": list(engine.source.stored),
                "computed_in": engine.kv.dtype.value,
                "fidelity": encode(engine.fidelity),
            }
            for engine in bundle.engines
        },
        "verification": None if checked is None else encode(checked),
    }
