"""``python -m export verify``: a bundle's engines against the checkpoints they came from."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engines.bundle import open_bundle
from engines.codec import encode
from export.cli.console import add_output_options, display, emit, emit_json

if TYPE_CHECKING:
    from export.check.verify import EngineCheck, Verification
    from export.cli.console import Parser

DESCRIPTION = """\
Run the same text through the bundle's engines and through their checkpoints (transformers, fp32),
and compare the logits at every position. An fp32 engine must agree to rounding; for the others
the figures tell what the precision costs. A draft whose checkpoint is not found is left out, and
a note says so. Compiled plans are compared with the graphs they came from, too; where no GPU can
run them, the graph is checked in their place, and a note says so. Exit code 1 when an engine is
wrong. Needs torch and transformers, and polygraphy for a compiled bundle:
pip install 'ssd-trt[torch,bench]'."""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "verify",
        prog="python -m export verify",
        help="compare a bundle with its checkpoints",
        description=DESCRIPTION,
        epilog="example:\n  python -m export verify engines/bundles/demo",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    for role in ("target", "draft"):
        parser.add_argument(
            f"--{role}",
            metavar="CHECKPOINT",
            help=f"what the {role} was built from (default: as it was named when it was built)",
        )
    add_output_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from export.check.sources import find_draft, find_target
    from export.check.verify import require_packages, verify

    bundle = open_bundle(args.bundle)
    require_packages(bundle)
    target = find_target(bundle, args.target)
    draft, note = find_draft(bundle, args.draft)
    with display(args.quiet) as shown:
        result = verify(bundle.path, target, draft=draft, progress=shown.step)
    if note is not None:
        result = replace(result, notes=(*result.notes, note))
    if args.json:
        facts = encode(result)
        assert isinstance(facts, dict)
        emit_json({"bundle": str(bundle.path), **facts})
    else:
        emit(text(result))
    return 0 if result.passed else 1


def text(result: Verification) -> str:
    """The figures for people."""
    lines = [f"note: {note}" for note in result.notes]
    for role, check in result.engines.items():
        lines += _engine_lines(role, check)
    lines += _parity_lines(result)
    lines.append(f"{'passed' if result.passed else 'FAILED'}: {result.verdict}")
    return "\n".join(lines) + "\n"


def _engine_lines(role: str, check: EngineCheck) -> list[str]:
    figures = check.fidelity
    extent = f"{figures.num_prompts} prompts, {figures.num_positions} positions"
    lines = [
        f"{role}: {check.precision} {check.engine} against the fp32 checkpoint, {extent}",
        f"  largest logit difference  {figures.max_abs_difference:.3g}",
        f"  same most likely token    {figures.top1_agreement:.2%} of the answers' positions",
        f"  mean KL divergence        {figures.mean_kl:.3g} nats",
    ]
    first = figures.first_divergence
    if first is None:
        lines.append("  first divergence          none: all greedy choices are the same")
    else:
        lines.append(
            f"  first divergence          prompt {first.prompt}, position {first.position}: "
            f"the checkpoint says {first.reference_id}, the engine {first.engine_id}; the "
            f"checkpoint's two best logits are {first.margin:.3g} apart"
        )
    return lines


def _parity_lines(result: Verification) -> list[str]:
    """The plans against their graphs on ONNX Runtime."""
    parity = result.parity
    if parity is None:
        return []
    lines = [
        f"  {role} {call.kind} against its graph: largest difference "
        f"{call.max_abs_difference:.3g}{f', {call.reason}' if call.reason else ''}"
        for role, calls in parity.calls.items()
        for call in calls
    ]
    if parity.answers is not None:
        lines.append(
            f"  greedy answer against the graph's: {parity.answers.num_equal} of "
            f"{parity.answers.num_tokens} tokens equal"
        )
    return lines
