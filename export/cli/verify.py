"""``python -m export verify``: a bundle's target engine against the checkpoint it came from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.bundle import open_bundle
from engines.codec import encode
from export.cli.console import add_output_options, display, emit, emit_json

if TYPE_CHECKING:
    from export.check.verify import Verification
    from export.cli.console import Parser

DESCRIPTION = """\
Run the same text through the bundle's target engine and through its checkpoint (transformers,
fp32), and compare the logits at every position. An fp32 engine must agree to rounding; for the
others the figures tell what the precision costs. Compiled plans are compared with the graphs they
came from, too; where no GPU can run them, the graph is checked in their place, and a note says so.
Exit code 1 when the engine is wrong. Needs torch and transformers, and polygraphy for a compiled
bundle: pip install 'ssd-trt[torch,bench]'."""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "verify",
        prog="python -m export verify",
        help="compare a bundle with its checkpoint",
        description=DESCRIPTION,
        epilog="example:\n  python -m export verify engines/bundles/demo",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    parser.add_argument(
        "--target",
        metavar="CHECKPOINT",
        help="the checkpoint it was built from (default: as it was named when it was built)",
    )
    add_output_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from export.check.verify import find_checkpoint, verify

    bundle = open_bundle(args.bundle)
    checkpoint = find_checkpoint(bundle, args.target)
    with display(args.quiet) as shown:
        result = verify(bundle.path, checkpoint, shown.step)
    if args.json:
        facts = encode(result)
        assert isinstance(facts, dict)
        emit_json({"bundle": str(bundle.path), **facts})
    else:
        emit(text(result))
    return 0 if result.passed else 1


def text(result: Verification) -> str:
    """The figures for people."""
    extent = f"{result.num_prompts} prompts, {result.num_positions} positions"
    lines = [
        *(f"note: {note}" for note in result.notes),
        f"{result.precision} {result.engine} against the fp32 checkpoint, {extent}",
        f"  largest logit difference  {result.max_abs_difference:.3g}",
        f"  same most likely token    {result.top1_agreement:.2%} of the answers' positions",
        f"  mean KL divergence        {result.mean_kl:.3g} nats",
    ]
    first = result.first_divergence
    if first is None:
        lines.append("  first divergence          none: all greedy choices are the same")
    else:
        lines.append(
            f"  first divergence          prompt {first.prompt}, position {first.position}: "
            f"the checkpoint says {first.reference_id}, the engine {first.engine_id}; the "
            f"checkpoint's two best logits are {first.margin:.3g} apart"
        )
    lines += _parity_lines(result)
    lines.append(f"{'passed' if result.passed else 'FAILED'}: {result.verdict}")
    return "\n".join(lines) + "\n"


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
