"""``python -m export build``: checkpoints to bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.codec import encode
from export.build.build import BuildResult, Verify, build, find_present
from export.build.options import (
    BACKENDS,
    BLOCKS,
    DEFAULT_PLACE,
    LATER_BACKENDS,
    MAX_BRANCHES,
    MAX_DRAFT,
    PRECISIONS,
    BuildOptions,
)
from export.build.plan import BuildPlan, check_room, in_words, make_plan
from export.cli.console import add_output_options, display, emit, emit_json

if TYPE_CHECKING:
    from export.cli.console import Parser

DESCRIPTION = """\
Compile a target and, with --draft, a draft for it. The bundle is a folder that can be moved and
copied. It appears in one step when it is complete; building the same again is a cache hit."""

EXAMPLES = """\
a checkpoint is one of
  a path        a Hugging Face folder (safetensors), or a .gguf file
  a name        fetched before: python -m export fetch NAME
  a hub id      ORG/NAME, downloaded from the model hub

examples:
  python -m export build --target smollm2-135m --draft smollm2-135m-draft --out engines/bundles/demo
  python -m export build --target models/Qwen3-0.6B --precision fp32 --max-len 4096 --verify
  python -m export build --target model.Q8_0.gguf --draft small.gguf --num-draft 6 --dry-run
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
        help="a small model that guesses ahead; none: build the target alone (default)",
    )
    option(
        "--backend",
        default=BACKENDS[0],
        choices=BACKENDS + LATER_BACKENDS,
        metavar="NAME",
        help=f"what will run the engines (default: {BACKENDS[0]}, the only one in this version)",
    )
    option(
        "--precision",
        default=PRECISIONS[0],
        choices=PRECISIONS,
        help="of the weights; int8: a quarter of the size, about twice as fast, close to fp32; "
        "fp32: the checkpoint's own numbers (default: %(default)s)",
    )
    option(
        "--block",
        type=int,
        default=BLOCKS[0],
        choices=BLOCKS,
        help="int8: weights that share a scale; 32 is closer to fp32, 64 faster "
        "(default: %(default)s)",
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
        precision=args.precision,
        block=args.block,
        max_len=args.max_len,
        max_batch=args.max_batch,
        num_draft=args.num_draft,
        max_branches=args.max_branches,
    )
    with display(args.quiet) as shown:
        if args.dry_run:
            plan = make_plan(options, shown)
            check_room(plan, shown)
        else:
            result = build(options, reporter=shown, verify=_verify() if args.verify else None)
    if args.dry_run:
        facts = _planned(plan)
        emit_json(facts) if args.json else emit(_plan_text(plan, facts))
    elif args.json:
        emit_json(_built(result))
    elif args.quiet:
        emit(f"{result.bundle.path}\n")
    else:
        emit(f"try it: python -m runtime generate --bundle {result.bundle.path} --prompt 'Hello'\n")
    return 0


def _verify() -> Verify:
    from export.check.reference import require_transformers
    from export.check.verify import verify_or_refuse

    require_transformers()  # now, not after minutes of building
    return verify_or_refuse


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
                "kv_bytes": estimate.kv_bytes,
                "build_bytes": estimate.build_bytes,
            }
            for estimate in plan.estimates()
        },
        "command": plan.options.command(),
    }


def _plan_text(plan: BuildPlan, facts: dict[str, object]) -> str:
    lines = [f"{plan.options.place}: {plan.target.name}"]
    if plan.draft is not None:
        lines[0] += f" with draft {plan.draft.checkpoint.name}"
    lines += [
        f"  {estimate.role:6}  {estimate.num_parameters / 1e6:8.1f} M parameters, file about "
        + ", ".join(
            (
                in_words(estimate.file_bytes),
                f"caches {in_words(estimate.kv_bytes)}",
                f"memory while building about {in_words(estimate.build_bytes)}",
            )
        )
        for estimate in plan.estimates()
    ]
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
                "weight_bytes": engine.weight_bytes,
                "kv_bytes": engine.kv.bytes_for(engine.limits.max_batch),
            }
            for engine in bundle.engines
        },
        "verification": None if checked is None else encode(checked),
    }
