"""The command ``python -m export distill``: train a small draft from a target's own outputs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from export.checkpoint.api import open_checkpoint
from export.checkpoint.resolve import resolve
from export.cli.console import emit
from export.distill import artefact
from export.distill.measure import Figures
from export.distill.pipeline import DEFAULT_VOCAB, Options, check_options, distill
from export.distill.train import Progress
from export.packages import require
from export.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m export distill``."""
    parser.add_argument(
        "--target", required=True, metavar="PATH|NAME", help="checkpoint that the draft is for"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="new folder for the draft"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="time to spend; without --data the target writes for the first half (default 10)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE.npz",
        help="text that the target wrote: arrays ids, lens, answer_start, temperature",
    )
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="layers (default 2)")
    parser.add_argument(
        "--vocab",
        type=int,
        default=None,
        metavar="N",
        help=f"target ids that the draft can propose (default {DEFAULT_VOCAB}, or all)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="CPU threads (default 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Train a draft and write its folder; print what was measured. Returns the exit code 0.

    Raises a subclass of engines.errors.SsdError for anything a user can put right.
    """
    options = Options(
        target=args.target,
        out=args.out,
        seconds=60.0 * args.minutes,
        data=tuple(args.data),
        num_layers=args.layers,
        draft_vocab_size=args.vocab,
        num_threads=args.threads,
        seed=args.seed,
    )
    check_options(options)
    require_torch()
    target = open_checkpoint(resolve(options.target))
    with progress(args.quiet) as report:
        figures, steps = distill(options, target, report)
    result = summary_json if args.json else summary
    emit(result(options, figures, steps) + "\n")
    return 0


def require_torch() -> None:
    """Raise MissingDependencyError where torch is not installed, BackendError where it is
    damaged."""
    require("torch", "torch", "torch", "python -m export distill", ("Tensor",))


def summary(options: Options, figures: Figures, steps: Progress) -> str:
    """The result in words."""
    rounds = ", ".join(
        f"K={num_draft} {tokens:.2f}" for num_draft, tokens in figures.tokens_per_round.items()
    )
    return (
        f"wrote {options.out}\n"
        f"trained on {steps.num_tokens:,} tokens in {steps.num_steps:,} steps\n"
        f"held out: {figures.num_positions:,} positions, draft agrees with the target on "
        f"{figures.alpha:.3f}, tokens a round {rounds}"
    )


def summary_json(options: Options, figures: Figures, steps: Progress) -> str:
    """The result as one JSON object."""
    return json.dumps(
        {
            "out": str(options.out),
            "num_steps": steps.num_steps,
            "num_tokens": steps.num_tokens,
            "measured": artefact.measured(figures),
        }
    )
