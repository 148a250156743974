"""Options on how to sample, when an answer ends and what it has to be; and how they are read."""

from __future__ import annotations

import argparse
from pathlib import Path

from engines.errors import UsageError
from runtime.cli.options import text, whole
from runtime.grammar import Grammar, check
from runtime.request import GenerateOptions, read_options
from runtime.sampling.params import SamplingParams

MAX_BYTES = 2**20
"""Of a schema or grammar that is read."""


def add_sampling_options(parser: argparse.ArgumentParser, *, several: bool) -> None:
    """``several``: prompts take temperatures in turn; ``args.temperature`` is a tuple then."""
    group = parser.add_argument_group("sampling")
    how = "0: the most likely token; 1: the model's own law"
    if several:
        group.add_argument(
            "--temperature",
            type=_numbers,
            default=(0.0,),
            metavar="T[,T]",
            help=f"{how}; several are given to the prompts in turn, so that greedy and sampled "
            "rows meet in a batch (default: 0)",
        )
    else:
        group.add_argument(
            "--temperature", type=float, default=0.0, metavar="T", help=f"{how} (default: 0)"
        )
    group.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="N",
        help="sample among the N most likely tokens; 0: among all (default: 0)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample among the fewest tokens that hold this share (default: 1)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="of those, leave out tokens less than P times as likely as the likeliest (default: 0)",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="the same seed gives the same tokens (default: 0)",
    )
    _add_edits(group)


def _add_edits(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="R",
        help="above 1: tokens of prompt and answer are less likely; a positive logit is divided by "
        "R, a negative one multiplied (default: 1)",
    )
    group.add_argument(
        "--presence-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="taken off the logit of each token that the answer has (default: 0)",
    )
    group.add_argument(
        "--frequency-penalty",
        type=float,
        default=0.0,
        metavar="X",
        help="taken off it once for each time that the answer has it (default: 0)",
    )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        default=[],
        metavar="ID=X",
        help="add X to the logit of a token; may be given several times",
    )


def sampling_of(args: argparse.Namespace, temperature: float) -> SamplingParams:
    """A request's parameters. Raises UsageError on a value outside its range."""
    return SamplingParams(
        temperature=temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=tuple(args.logit_bias),
    )


def add_max_tokens(group: argparse._ActionsContainer, default: int = 128) -> None:
    group.add_argument(
        "--max-tokens",
        type=whole(1),
        default=default,
        metavar="N",
        help="longest answer, in tokens (default: %(default)s)",
    )


def add_ending_options(parser: argparse.ArgumentParser, *, max_tokens: int = 128) -> None:
    """When an answer ends, and what it has to be; see ``options_of``."""
    group = parser.add_argument_group("ending")
    add_max_tokens(group, max_tokens)
    group.add_argument(
        "--min-tokens",
        type=whole(0),
        default=0,
        metavar="N",
        help="shortest answer, in tokens: nothing but a limit ends it before (default: 0)",
    )
    group.add_argument(
        "--stop",
        type=text,
        action="append",
        default=[],
        metavar="TEXT",
        help="end the answer before this text; may be given several times "
        "(a line break is $'\\n' in bash)",
    )
    group.add_argument(
        "--stop-token-ids",
        type=whole(0),
        nargs="+",
        default=[],
        metavar="ID",
        help="tokens that end the answer, beside the model's end-of-sequence",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        help="go on behind the model's end-of-sequence (default: it ends the answer)",
    )
    group.add_argument(
        "--bad-words",
        type=text,
        action="append",
        default=[],
        metavar="TEXT",
        help="keep this word's tokens from following one another, with and without a space in "
        "front; may be given several times",
    )
    _add_grammar_options(parser)


def _add_grammar_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "form of the answer", "needs the extra: pip install 'ssd-trt[grammar]'"
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--json-schema", type=Path, metavar="FILE", help="JSON that this JSON schema describes"
    )
    group.add_argument("--json-object", action="store_true", help="any JSON object")
    group.add_argument(
        "--regex", type=text, metavar="PATTERN", help="text that the whole pattern matches"
    )
    group.add_argument(
        "--grammar", type=Path, metavar="FILE", help="text that a Lark grammar derives from start"
    )
    group.add_argument(
        "--choice",
        type=text,
        action="append",
        metavar="TEXT",
        help="one of these texts, word for word; given once for each",
    )


def options_of(args: argparse.Namespace, *, logprobs: int | None = None) -> GenerateOptions:
    """What ``add_ending_options`` has read, checked as far as it can be without a model."""
    options: GenerateOptions = {
        "max_tokens": args.max_tokens,
        "min_tokens": args.min_tokens,
        "stop": args.stop,
        "stop_token_ids": args.stop_token_ids,
        "ignore_eos": args.ignore_eos,
        "bad_words": args.bad_words,
        "grammar": _grammar_of(args),
        "logprobs": logprobs,
    }
    # Refused now, not after a model was loaded.
    read_options(vocab_size=None, **options)
    if options["grammar"] is not None:
        check(options["grammar"])
    return options


def _grammar_of(args: argparse.Namespace) -> Grammar | None:
    if args.json_schema is not None:
        return Grammar.json_schema(_read("--json-schema", args.json_schema))
    if args.json_object:
        return Grammar.json_object()
    if args.regex is not None:
        return Grammar.regex(args.regex)
    if args.grammar is not None:
        return Grammar.lark(_read("--grammar", args.grammar))
    return None if args.choice is None else Grammar.choice(args.choice)


def _read(option: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {option} {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{option} {path} is longer than {MAX_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path} is not UTF-8 (byte {error.start})") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number, or several with commas between"
        ) from None


def _bias(value: str) -> tuple[int, float]:
    token, separator, number = value.partition("=")
    try:
        if separator:
            return int(token), float(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{value!r} is not a token id, = and a number")
