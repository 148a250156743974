"""``python -m runtime generate``: one prompt, one answer, streamed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from engines.errors import UsageError
from runtime.cli.console import busy, emit, say
from runtime.cli.options import (
    MODES,
    Commands,
    OpenLlm,
    add_bundle_options,
    add_command,
    add_output_options,
    add_sampling_options,
    check_fits,
    sampling_of,
)
from runtime.cli.prompts import one_prompt
from runtime.cli.report import FORMULAS, number, percent, stats_record, to_json

if TYPE_CHECKING:
    from runtime.llm import Completion

DESCRIPTION = """\
Answer one prompt. The text is streamed to stdout; a line with the speed goes to stderr."""

EXAMPLES = """\
modes:
  ar    plain decoding, one token a step: the baseline
  sd    speculative decoding: draft K tokens, then verify them in one step
  ssd   the draft prepares the next round while the target verifies this one
  auto  what is fastest on this machine

examples:
  python -m runtime generate --bundle engines/bundles/demo --chat --prompt "Name three rivers."
  python -m runtime generate --bundle engines/bundles/demo --mode ar --prompt "Once upon a time"
  cat question.txt | python -m runtime generate --bundle engines/bundles/demo --chat --prompt -
  python -m runtime generate --bundle engines/bundles/demo --chat --temperature 0.8 --seed 7 \\
      --prompt "Write a haiku." --json
"""

ENDINGS = {
    "stop": "ended by the model",
    "length": "ended by --max-tokens",
    "context": "ended by the bundle's max_len",
}


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "generate",
        "answer one prompt",
        DESCRIPTION,
        EXAMPLES,
    )
    add_bundle_options(parser)
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="the prompt; - reads it from stdin"
    )
    parser.add_argument(
        "--chat", action="store_true", help="put the prompt into the bundle's chat template"
    )
    parser.add_argument(
        "--mode", choices=MODES, default="auto", help="how to decode (default: auto)"
    )
    add_sampling_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    open_llm: OpenLlm = args.open_llm
    params = sampling_of(args)
    prompt = one_prompt(args.prompt)
    with busy(f"loading {args.bundle}", quiet=args.quiet, plain=False):
        llm = open_llm(
            args.bundle,
            mode=args.mode,
            verify=args.verify,
            num_draft=args.num_draft,
            branches=args.branches,
        )
    with llm:
        if args.chat and not llm.has_chat_template:
            raise UsageError(f"--chat needs a chat template, and {args.bundle} has none; drop it")
        ids = llm.encode(prompt, chat=args.chat)
        check_fits("the prompt", len(ids), llm.limits.max_len)
        if llm.note and not args.quiet:
            say(f"note: {llm.note}")
        if args.json:
            completion = llm.generate(ids, params, max_tokens=args.max_tokens)
        else:
            try:
                completion = llm.generate(ids, params, max_tokens=args.max_tokens, on_text=emit)
            finally:
                emit("\n")
    if args.json:
        emit(to_json(as_record(completion)))
    elif not args.quiet:
        say(summary(completion))
    return 0


def as_record(completion: Completion) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "mode": completion.mode,
        "note": completion.note,
        "prompt_tokens": completion.prompt_tokens,
        **stats_record(completion.stats),
        "formulas": FORMULAS,
    }


def summary(completion: Completion) -> str:
    """One line for people: what ran, how fast, how well the drafts were."""
    stats = completion.stats
    parts = [
        f"{len(completion.token_ids)} tokens, {ENDINGS[completion.finish_reason]}",
        f"{number(stats.tokens_per_second, 1)} tokens/s",
        f"acceptance length {number(stats.acceptance_length, 2)}",
    ]
    if stats.hit_rate is not None:
        parts.append(f"cache hit rate {percent(stats.hit_rate)}")
    return f"{completion.mode}: " + "; ".join(parts)
