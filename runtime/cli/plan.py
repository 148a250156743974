"""``python -m runtime plan``: what a pair would yield, before it is bought or built."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from engines.bundle import Bundle, open_bundle
from engines.errors import UsageError
from runtime.cli.console import emit
from runtime.cli.options import PROGRAM, Commands, add_command, add_output_options
from runtime.cli.plan_question import MOST_BRANCHES, MOST_DRAFTS, question_of
from runtime.cli.plan_report import as_record, as_text
from runtime.cli.plan_times import call_times
from runtime.cli.report import to_json
from runtime.devices import parse_devices
from runtime.memory_plan import MemoryPlan, plan_memory
from runtime.plan.planner import Plan, answer
from runtime.spec.cost.economics import Devices
from runtime.spec.cost.laws import PUBLISHED_EXPONENT

MAX_BATCH, MAX_DRAFT, MAX_BRANCHES = 65536, 64, 1024
"""No pair runs beyond them, and the search would take minutes."""

DESCRIPTION = """\
Predict what a pair of models yields: plain decoding (ar), drafting between verifications (sd) and
drafting ahead of them (ssd), each at its best setting; from which acceptance on they pay; whether
a device of the draft's own earns its keep; how evenly tokens arrive. Give step times, or a bundle
to be measured here; and an acceptance, a log of outcomes, or the bundle's own texts."""

EXAMPLES = """\
CURVE is the milliseconds of every call, or SIZE:MS points with commas between them, SIZE being a
call's tokens or ROWSxTOKENS: 1x8:15,16x8:20.2 is 15 ms for one text of 8 tokens, 20.2 for sixteen.
A verification has K + 1 tokens a text, a step of a draft that prepares W outcomes has W.

examples:
  python -m runtime plan --target-ms 15 --draft-ms 2.2 --acceptance 0.85
  python -m runtime plan --target-ms 1x8:15,16x8:20.2 --draft-ms 1x1:1.4,16x24:3 \\
      --acceptance 0.85 --batch 16 --devices 4+1
  python -m runtime plan --bundle engines/bundles/demo --memory
  python -m runtime plan --bundle engines/bundles/demo --outcomes outcomes.jsonl --json
  python -m runtime plan --target-ms 15 --draft-ms 2.2 --acceptance 0.85 --plot plan.svg

An outcome log: python -m runtime bench --bundle DIR --log-outcomes FILE
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands, "plan", "predict what a pair yields, and where it pays", DESCRIPTION, EXAMPLES
    )
    _add_pair_options(parser)
    _add_use_options(parser)
    output = add_output_options(parser)
    output.add_argument(
        "--memory",
        nargs="?",
        const="cpu",
        metavar="DEVICES",
        help="also the bundle's memory by engine, on these devices as for generate --device "
        "(default: cpu)",
    )
    output.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw tokens/s over acceptance: .png or .svg"
    )
    parser.set_defaults(run=run)


def _add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the pair")
    group.add_argument("--bundle", type=Path, metavar="DIR", help="bundle to measure here")
    for option, what in (("--target-ms", "a target's call"), ("--draft-ms", "a draft's call")):
        group.add_argument(option, type=call_times, metavar="CURVE", help=f"milliseconds of {what}")
    for option, engine in (("--beside-target-ms", "target"), ("--beside-draft-ms", "draft")):
        group.add_argument(
            option,
            type=call_times,
            metavar="CURVE",
            help=f"the {engine}'s while the other engine works too, where they share a device "
            "(default: the same)",
        )
    group.add_argument(
        "--exchange-ms",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="from an outcome to the next verification, beside all drafting (default: 0)",
    )
    group.add_argument(
        "--acceptance",
        type=_share,
        metavar="X",
        help="share of drafted tokens that are accepted, of those before the first rejected one "
        "and itself",
    )
    group.add_argument("--outcomes", type=Path, metavar="FILE", help="outcome log of real texts")
    group.add_argument(
        "--rank-exponent",
        type=_exponent,
        metavar="R",
        help="with --acceptance: F guesses of a bonus token miss with probability F ** -R "
        f"(default: {PUBLISHED_EXPONENT}, of a 70B and a 1B model, greedy; 0.86 at temperature 1)",
    )


def _add_use_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("its use")
    group.add_argument(
        "--batch", type=_up_to(MAX_BATCH), default=1, metavar="N", help="texts at once (default: 1)"
    )
    group.add_argument(
        "--devices",
        type=_devices,
        metavar="T+D",
        help="devices of the target and more of the draft in ssd; one number: both engines share "
        "them (default: 1+1; of a bundle: 1, this machine)",
    )
    for option, metavar, what, usual, most in (
        ("--max-draft", "K", "tokens drafted", MOST_DRAFTS, MAX_DRAFT),
        ("--max-branches", "W", "outcomes prepared", MOST_BRANCHES, MAX_BRANCHES),
    ):
        group.add_argument(
            option,
            type=_up_to(most),
            metavar=metavar,
            help=f"most {what} to look at, up to {most} (default: {usual}; of a bundle: what it "
            "was built for)",
        )


def run(args: argparse.Namespace) -> int:
    """Answer, print and draw; returns the exit code."""
    _check(args)
    bundle = None if args.bundle is None else open_bundle(args.bundle)
    memory = None if args.memory is None or bundle is None else _memory(args, bundle)
    plan = answer(question_of(args, bundle))
    if args.plot is not None:
        from runtime.plan.picture import draw

        draw(plan, args.plot)
    emit(_shown(args, plan, memory))
    return 0


def _shown(args: argparse.Namespace, plan: Plan, memory: MemoryPlan | None) -> str:
    command = shlex.join([*PROGRAM.split(), *args.command_line])
    if args.json:
        return to_json({"command": command} | as_record(plan, memory))
    return as_text(plan, memory)


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together, before any work."""
    given = [name for name in ("target_ms", "draft_ms") if getattr(args, name) is not None]
    if len(given) == 1 or not (given or args.bundle):
        raise UsageError("give step times with --target-ms and --draft-ms, or a --bundle")
    beside = args.beside_target_ms or args.beside_draft_ms
    if not given and (beside or args.exchange_ms):
        raise UsageError(
            "--beside-target-ms, --beside-draft-ms and --exchange-ms go with --target-ms and "
            "--draft-ms; a bundle's are measured"
        )
    if args.acceptance is not None and args.outcomes is not None:
        raise UsageError("--acceptance and --outcomes both say how drafts fare; give one")
    if args.acceptance is None and args.outcomes is None and args.bundle is None:
        raise UsageError("give --acceptance X, --outcomes FILE, or a --bundle to be measured")
    if args.rank_exponent is not None and args.acceptance is None:
        raise UsageError("--rank-exponent goes with --acceptance")
    if args.memory is not None and args.bundle is None:
        raise UsageError("--memory is read from a bundle's manifests; give --bundle DIR")
    if args.plot is not None:
        from runtime.plan.picture import require_drawable

        require_drawable(args.plot)


def _memory(args: argparse.Namespace, bundle: Bundle) -> MemoryPlan:
    limits = bundle.manifest.limits
    return plan_memory(
        bundle.engines,
        parse_devices(args.memory),
        num_slots=args.batch,
        num_draft=limits.num_draft,
        num_branches=limits.max_branches,
    )


def _devices(text: str) -> Devices:
    match = re.fullmatch(r"([1-9][0-9]{0,4})(?:\+([0-9]{1,5}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices such as 4+1 or 1")
    return Devices(int(match[1]), int(match[2] or 0))


def _up_to(most: int) -> Callable[[str], int]:
    """Reads a whole number from 1 on."""

    def read(text: str) -> int:
        if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text) or int(text) > most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return int(text)

    return read


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0 to 1")
    return abs(value)  # -0 is 0


def _exponent(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no exponent above 0, at most 100")
    return value


def _milliseconds(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time from 0 on, in milliseconds")
    return abs(value)
