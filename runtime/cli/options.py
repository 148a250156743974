"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

from engines.errors import CapacityError, UsageError
from runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from runtime.llm import LLM

PROGRAM = "python -m runtime"
MODES = ("ar", "sd", "ssd", "auto")
RULES = ("coupled", "ratio")


class OpenLlm(Protocol):
    """``LLM.open``, or what stands in for it."""

    def __call__(
        self,
        bundle: Path,
        *,
        mode: str = ...,
        verify: str = ...,
        num_draft: int | None = ...,
        branches: int | None = ...,
    ) -> LLM: ...


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


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="bundle directory to run"
    )
    parser.add_argument(
        "--verify",
        choices=RULES,
        default="coupled",
        help="rule that accepts drafted tokens; coupled: the same tokens for a seed in every mode; "
        "ratio: higher acceptance when sampling, same law (default: coupled)",
    )
    parser.add_argument(
        "--num-draft",
        type=whole(1),
        metavar="K",
        help="tokens drafted a round (default: what the bundle was built for)",
    )
    parser.add_argument(
        "--branches",
        type=whole(1),
        metavar="W",
        help="outcomes prepared ahead in ssd mode (default: what the bundle was built for)",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=whole(1),
        default=128,
        metavar="N",
        help="longest answer, in tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0: the most likely token; 1: the model's own law (default: 0)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="N",
        help="sample among the N most likely tokens; 0: among all (default: 0)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample among the fewest tokens that hold this share (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="the same seed gives the same tokens (default: 0)",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    parser.add_argument("--quiet", action="store_true", help="results and errors only")


def sampling_of(args: argparse.Namespace) -> SamplingParams:
    """The request's parameters. Raises UsageError on a value outside its range."""
    return SamplingParams(
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed
    )


def check_fits(what: str, num_tokens: int, max_len: int) -> None:
    """Raise CapacityError unless a prompt of ``num_tokens`` leaves room for an answer."""
    if num_tokens >= max_len:
        raise CapacityError(
            f"{what} has {num_tokens} tokens; the bundle holds {max_len}, prompt and answer "
            f"together: shorten it, or rebuild with a larger --max-len"
        )
