"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from engines.compat import TENSORRT_BACKENDS
from engines.errors import CapacityError, UsageError
from runtime.cli.console import say
from runtime.devices import parse_devices

if TYPE_CHECKING:
    from engines.bundle import Bundle
    from runtime.llm import LLM

PROGRAM = "python -m runtime"
MODES = ("ar", "sd", "ssd", "auto")
RULES = ("coupled", "ratio")
DRAFTERS = ("auto", "model", "lookup", "both")
FALLBACKS = ("auto", "zero", "jit", "lookup")
BACKENDS = ("onnxruntime", *TENSORRT_BACKENDS)


class OpenLlm(Protocol):
    """``LLM.open``, or what stands in for it; ``options`` are its keyword arguments."""

    def __call__(self, bundle: Path, **options: Any) -> LLM: ...


class Parser(argparse.ArgumentParser):
    """argparse whose errors are UsageError, so that they end like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(
    commands: Commands, name: str, purpose: str, description: str, examples: str
) -> Parser:
    """The parser of a new command; its ``run`` is set by the caller."""
    return commands.add_parser(
        name,
        help=purpose,
        prog=f"{PROGRAM} {name}",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number of at least ``least``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {least}")
        return value

    return read


def text(value: str) -> str:
    """Reads some text of an argument."""
    if not value:
        raise argparse.ArgumentTypeError("it is empty")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise argparse.ArgumentTypeError("it is not UTF-8")
    return value


def add_bundle_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("bundle and speculation")
    group.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="bundle directory to run"
    )
    group.add_argument(
        "--verify",
        choices=RULES,
        default="coupled",
        help="rule that accepts drafted tokens; coupled: the same tokens for a seed in every mode; "
        "ratio: higher acceptance when sampling, same law (default: coupled)",
    )
    group.add_argument(
        "--num-draft",
        type=whole(1),
        metavar="K",
        help="tokens drafted a round, in auto at most (default: what the bundle was built for)",
    )
    group.add_argument(
        "--drafter",
        choices=DRAFTERS,
        default="auto",
        help="who drafts; model: the draft model; lookup: what followed the same words earlier in "
        "the text, without a draft model (not in ssd mode); both: for each round what promises "
        "more; auto: both, or lookup where the bundle has no draft (default: auto)",
    )
    group.add_argument(
        "--branches",
        type=whole(1),
        metavar="W",
        help="outcomes prepared ahead in ssd mode, in auto at most (default: what the bundle was "
        "built for)",
    )

    group.add_argument(
        "--fallback",
        choices=FALLBACKS,
        default="auto",
        help="what a round goes on with in ssd mode when its outcome was not prepared; zero: no "
        "draft; jit: one drafted at once, just in time; lookup: what followed the same words "
        "earlier in the text; auto: what is predicted to be fastest, in mode auto decided again "
        "as it runs (default: auto)",
    )
    group.add_argument(
        "--saguaro",
        type=_saguaro,
        default=1.0,
        metavar="C",
        help="with --verify ratio: draft the prepared tokens C times as often, so that more "
        "outcomes are among them; 0 to 1, or auto: measured (default: 1, off)",
    )
    group.add_argument(
        "--adaptive-length",
        action="store_true",
        help="with --verify coupled, on the CPU: draft and verify fewer tokens where the draft is "
        "unsure of itself (default: off)",
    )
    group.add_argument(
        "--no-prefix-reuse",
        dest="prefix_reuse",
        action="store_false",
        help="feed every prompt from its first token on, also where an earlier text began alike "
        "(default: go on behind what that one left in the cache; the answers are the same)",
    )
    _add_device_options(parser)
    return group


def _add_device_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices")
    add_device(group)
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        help="refuse a bundle that was built for another one (default: take what it is built for)",
    )
    group.add_argument(
        "--draft-sm-share",
        type=float,
        metavar="X",
        help="on one GPU with compiled engines: give the draft this part of the multiprocessors, "
        "above 0 and below 1, and the target the rest (default: shared, the target first)",
    )
    group.add_argument(
        "--tensor-parallel",
        type=whole(1),
        default=1,
        metavar="N",
        help="GPUs that the target is spread over; only 1 so far (default: 1)",
    )
    group.add_argument(
        "--verbose",
        action="store_true",
        help="also say what is loaded where, and how much memory it takes",
    )


def add_device(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--device",
        type=_device,
        metavar="D[,D]",
        help="where the engines run: cpu; cuda:0, both on one GPU; cuda:0,cuda:1, target and "
        "draft; cuda:0,cpu (default: cpu, or cuda:0 for a bundle of compiled engines)",
    )


def _device(text: str) -> str:
    try:
        return str(parse_devices(text))
    except UsageError as error:  # argparse has no other way to hand on a reason
        raise argparse.ArgumentTypeError(str(error)) from None


def _saguaro(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 to 1 nor auto")
    return value


def open_for(
    args: argparse.Namespace,
    *,
    mode: str,
    max_batch: int | None = None,
    announce: Callable[[str], None] | None = None,
) -> LLM:
    """The bundle of ``add_bundle_options``, opened; ``announce`` is told before it is measured."""
    open_llm: OpenLlm = args.open_llm
    return open_llm(
        args.bundle,
        mode=mode,
        verify=args.verify,
        num_draft=args.num_draft,
        drafter=args.drafter,
        branches=args.branches,
        max_batch=max_batch,
        fallback=args.fallback,
        saguaro=args.saguaro,
        adaptive_length=args.adaptive_length,
        backend=args.backend,
        device=args.device,
        draft_sm_share=args.draft_sm_share,
        tensor_parallel=args.tensor_parallel,
        prefix_reuse=args.prefix_reuse,
        trace=args.trace is not None,
        tell=say if args.verbose and not args.quiet else None,
        announce=announce,
    )


def add_output_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    group.add_argument("--quiet", action="store_true", help="results and errors only")
    return group


def possible_modes(
    bundle: Bundle, args: argparse.Namespace, drafter: str | None = None
) -> list[str]:
    """Of MODES those that a bundle can run with the options of ``add_bundle_options`` and a
    ``drafter``: where K and W leave room, and something can draft there."""
    limits = bundle.manifest.limits
    num_draft = limits.num_draft if args.num_draft is None else args.num_draft
    num_branches = limits.max_branches if args.branches is None else args.branches
    is_compiled = bundle.manifest.backend in TENSORRT_BACKENDS
    on_gpu = is_compiled if args.device is None else parse_devices(args.device).on_gpu
    has_model = bundle.draft is not None
    can_draft = has_model if on_gpu or drafter == "model" else True
    can_run = {
        "sd": num_draft > 0 and can_draft,
        "ssd": num_draft > 0 and num_branches > 0 and has_model and drafter != "lookup",
    }
    return [mode for mode in MODES if can_run.get(mode, True)]


def check_fits(what: str, num_tokens: int, max_len: int) -> None:
    """Raise CapacityError unless a prompt of ``num_tokens`` leaves room for an answer."""
    if num_tokens >= max_len:
        raise CapacityError(
            f"{what} has {num_tokens} tokens; the bundle holds {max_len}, prompt and answer "
            f"together: shorten it, or rebuild with a larger --max-len"
        )
