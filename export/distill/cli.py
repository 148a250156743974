"""The command ``python -m export distill``: train a small draft from a target's own outputs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from export.checkpoint.api import open_checkpoint
from export.checkpoint.resolve import resolve
from export.cli.console import emit
from export.distill.author import ANSWER_TOKENS, GREEDY_SHARE, WARM_TEMPERATURES
from export.distill.facts import Facts, evaluated, measured
from export.distill.options import (
    DEFAULT_LAYERS,
    DEFAULT_MINUTES,
    DEFAULT_VOCAB,
    Options,
    check,
)
from export.distill.pipeline import distill
from export.packages import require
from export.progress import progress

LABELS = ("soft", "hard")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m export distill``."""
    add = parser.add_argument_group
    option = add("what to make").add_argument
    option("--target", required=True, metavar="PATH|NAME", help="checkpoint that the draft is for")
    option("--out", required=True, type=Path, metavar="DIR", help="new folder for the draft")
    option(
        "--layers",
        type=int,
        metavar="N",
        help=f"layers, taken from both ends of the target (default {DEFAULT_LAYERS}); with "
        "--start-from: how many that draft grows to (default: as many as it has)",
    )
    option(
        "--from-layers",
        type=int,
        nargs="+",
        default=(),
        metavar="I",
        help="the target's layers to start from, counted from 0, in place of --layers",
    )
    option(
        "--width",
        type=int,
        metavar="C",
        help="narrower than the target: keep the C main directions of its states",
    )
    option(
        "--vocab",
        type=int,
        metavar="N",
        help=f"target ids that the draft can propose (default {DEFAULT_VOCAB}, or all; with "
        "--start-from: its own). They are chosen from the text: those said most",
    )

    option(
        "--start-from",
        metavar="DRAFT",
        help="go on from an earlier draft of this target, in its width; give text that it has not "
        "seen, or the held-out figures look too good. With --layers N layers are added that change "
        "nothing at first, with --vocab N its ids are chosen anew",
    )

    option = add("text to learn from").add_argument
    option(
        "--data",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE.npz",
        help="text that the target wrote: arrays ids, lens, answer_start, temperature",
    )
    option(
        "--write-minutes",
        type=float,
        metavar="N",
        help="time for the target to write text of its own (default: as --minutes; 0 with --data)",
    )
    option(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts that it answers first: one a line, or .jsonl with prompt or turns",
    )
    option(
        "--answer-tokens",
        type=int,
        default=ANSWER_TOKENS,
        metavar="N",
        help="longest answer to one of the prompts (default %(default)s)",
    )
    option(
        "--greedy",
        type=float,
        default=GREEDY_SHARE,
        metavar="SHARE",
        help="share of the answers that are greedy, 0 to 1 (default %(default)s); the others are "
        "sampled at temperatures " + " and ".join(map(str, WARM_TEMPERATURES)),
    )

    option = add("training").add_argument
    option(
        "--minutes",
        type=float,
        metavar="N",
        help=f"time to train (default {DEFAULT_MINUTES:g}, or no limit with --passes)",
    )
    option("--passes", type=float, metavar="N", help="passes over the text to train for")
    option(
        "--labels",
        choices=LABELS,
        default=LABELS[0],
        help="soft: the target's law, which takes 2 bytes a token and unit of width on disk; "
        "hard: its tokens (default %(default)s)",
    )
    option("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, cuda:1, ...")
    option("--threads", type=int, default=1, metavar="N", help="CPU threads (default 1)")
    option("--seed", type=int, default=0, metavar="S", help="default 0")

    option = add("measuring").add_argument
    option(
        "--evaluate",
        type=Path,
        metavar="FILE.jsonl",
        help="lines with category and turns, as Spec-Bench's: acceptance by category; text that "
        "shares 13 tokens in a row with it is left out of training",
    )

    option = add("stopping and going on").add_argument
    option(
        "--resume",
        action="store_true",
        help="go on where the same command was stopped (ctrl-C loses at most some seconds)",
    )
    option(
        "--work",
        type=Path,
        metavar="DIR",
        help="folder for text, states and checkpoints, kept at the end and shared by runs for one "
        "target (default: OUT.work, removed at the end)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Train a draft and write its folder; print what was measured. Returns the exit code 0.

    Raises a subclass of engines.errors.SsdError for anything a user can put right.
    """
    options = Options(
        target=args.target,
        # Not through folders that do not exist: making OUT.work would make OUT, too.
        out=args.out.resolve() if ".." in args.out.parts else args.out,
        data=tuple(args.data),
        prompts=args.prompts,
        answer_tokens=args.answer_tokens,
        greedy_share=args.greedy,
        evaluate=args.evaluate,
        minutes=args.minutes,
        passes=args.passes,
        write_minutes=args.write_minutes,
        soft=args.labels == LABELS[0],
        layers=tuple(args.from_layers),
        num_layers=args.layers,
        start=args.start_from,
        width=args.width,
        draft_vocab_size=args.vocab,
        device=args.device,
        num_threads=args.threads,
        seed=args.seed,
        work=args.work,
        resume=args.resume,
    )
    check(options)
    require_torch()
    target = open_checkpoint(resolve(options.target))
    with progress(args.quiet) as report:
        facts = distill(options, target, report)
    result = summary_json if args.json else summary
    emit(result(options, facts) + "\n")
    return 0


def require_torch() -> None:
    """Raise MissingDependencyError where torch is not installed, BackendError where it is
    damaged."""
    require("torch", "torch", "torch", "python -m export distill", ("Tensor",))


def summary(options: Options, facts: Facts) -> str:
    """The result in words."""
    figures, steps = facts.figures, facts.progress
    rounds = ", ".join(
        f"K={num_draft} {tokens:.2f}" for num_draft, tokens in figures.tokens_per_round.items()
    )
    lines = [
        f"wrote {options.out}",
        f"trained on {steps.num_tokens:,} tokens in {steps.num_steps:,} steps"
        + (", stopped early" if facts.is_early else ""),
        (
            f"held out: {figures.num_positions:,} positions, draft agrees with the target on "
            f"{figures.alpha:.3f}, tokens a round {rounds}"
        ),
    ]
    if facts.evaluation:
        lines.append(f"{facts.evaluated_on}, tokens a round: draft alone, lookup alone, both")
        lines += [
            f"  {name:16} {each.model:.2f} {each.lookup:.2f} {each.both:.2f}"
            for name, each in facts.evaluation.items()
        ]
    return "\n".join(lines)


def summary_json(options: Options, facts: Facts) -> str:
    """The result as one JSON object."""
    return json.dumps(
        {
            "out": str(options.out),
            "num_steps": facts.progress.num_steps,
            "num_tokens": facts.progress.num_tokens,
            "stopped_early": facts.is_early,
            "num_refused": facts.data.num_refused,
            "measured": measured(facts.figures),
            "evaluated": evaluated(facts.evaluation),
        }
    )
