"""``python -m runtime generate``: one prompt answered and streamed, or a file of prompts."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from engines.errors import UsageError
from runtime.cli.answers import InOrder, Run, as_record, summary
from runtime.cli.console import busy, emit, progress, say
from runtime.cli.options import (
    MODES,
    Commands,
    add_bundle_options,
    add_command,
    add_output_options,
    check_fits,
    open_for,
    whole,
)
from runtime.cli.prompts import many_prompts, one_prompt, shortened
from runtime.cli.report import FORMULAS, settings_record, to_json
from runtime.cli.sampling import (
    add_ending_options,
    add_sampling_options,
    options_of,
    sampling_of,
)
from runtime.cli.tracing import add_trace_option, save_trace
from runtime.placement import AUTO
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams, choice_params

if TYPE_CHECKING:
    from runtime.llm import LLM, Completion

DESCRIPTION = """\
Answer one prompt, streamed to stdout with a line on the speed to stderr; or a file of prompts,
several at once, each answer printed in the file's order when it is complete."""

EXAMPLES = """\
modes:
  ar    plain decoding, one token a step: the baseline
  sd    speculative decoding: draft K tokens, then verify them in one step
  ssd   the draft prepares the next round while the target verifies this one
  auto  what is fastest on this machine

The answer ends at the model's end-of-sequence token, a --stop-token-ids token, the first --stop
string, --max-tokens or the bundle's max_len, whichever comes first. What ended it is not part of
it. Log-probabilities are the target's own, before penalties, biases, forms, temperature and cuts.

An answer that has to have a form (--json-schema and the like) is at every token the beginning of
one that has it, and ends where it is complete: give --max-tokens enough, or it is cut off before.

examples:
  python -m runtime generate --bundle engines/bundles/demo --chat --prompt "Name three rivers."
  python -m runtime generate --bundle engines/bundles/demo --mode ar --prompt "Once upon a time"
  cat question.txt | python -m runtime generate --bundle engines/bundles/demo --chat --prompt -
  python -m runtime generate --bundle engines/bundles/demo --prompt "1, 2, 3," --stop 7 --stop 9
  python -m runtime generate --bundle engines/bundles/demo --chat --temperature 0.8 --seed 7 \\
      --prompt "Write a haiku." --logprobs 3 --json
  python -m runtime generate --bundle engines/bundles/demo --chat --json-schema person.json \\
      --prompt "Invent a person."
  python -m runtime generate --bundle engines/bundles/demo --chat --prompt "Is fire cold?" \\
      --choice yes --choice no
  python -m runtime generate --bundle engines/bundles/demo --chat --temperature 0.8 --n 3 \\
      --prompt "Name a colour."
  python -m runtime generate --bundle engines/bundles/demo --prompts questions.txt --chat --json
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands, "generate", "answer one prompt, or a file of them", DESCRIPTION, EXAMPLES
    )
    speculation = add_bundle_options(parser)
    speculation.add_argument(
        "--mode", choices=MODES, default="auto", help="how to decode (default: auto)"
    )
    _add_prompt_options(parser)
    add_sampling_options(parser, several=False)
    add_ending_options(parser)
    output = add_output_options(parser)
    output.add_argument(
        "--logprobs",
        type=whole(0),
        metavar="N",
        help="with --json: log-probabilities of each token and of the N likeliest at its place",
    )
    add_trace_option(output, "write")
    parser.set_defaults(run=run)


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="the prompt; - reads it from stdin")
    source.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help=".txt with a prompt a line, or .jsonl with objects that have a prompt or turns",
    )
    group.add_argument(
        "--batch",
        type=whole(1),
        metavar="N",
        help="of --prompts or --n, how many to decode at once; the next begins where one has ended "
        "(default: what the bundle was built for)",
    )
    group.add_argument(
        "--n",
        type=whole(1),
        default=1,
        metavar="N",
        help="answers to --prompt, decoded together, at most 128; answer i (from 0) is the one of "
        "seed S + i (default: 1)",
    )
    group.add_argument(
        "--chat", action="store_true", help="put the prompt into the bundle's chat template"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    params = sampling_of(args, args.temperature)
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs are shown by --json only; add --json")
    options = options_of(args, logprobs=args.logprobs)
    if args.prompt is None:
        if args.n != 1:
            raise UsageError("--n goes with --prompt; each of --prompts is answered once")
        prompts = many_prompts(args.prompts, None)
        names = [f"prompt {number}" for number in range(1, len(prompts) + 1)]
        return _answer_many(args, dict(zip(names, prompts, strict=True)), params, options)
    if args.n > 1:
        laws = choice_params(params, args.n)
        prompt = one_prompt(args.prompt)
        choices = {f"choice {number}": prompt for number in range(1, args.n + 1)}
        return _answer_many(args, choices, laws, options)
    if args.batch is not None:
        raise UsageError("--batch goes with --prompts or --n; one answer is decoded alone")
    return _answer_one(args, params, options)


def _answer_one(args: argparse.Namespace, params: SamplingParams, options: GenerateOptions) -> int:
    prompt = one_prompt(args.prompt)
    with busy(f"loading {args.bundle}", quiet=args.quiet, plain=False) as announce:
        llm = open_for(args, mode=args.mode, max_batch=1, announce=announce)
    with llm:
        [ids] = _encode(args, llm, {"the prompt": prompt})
        if args.json:
            completion = llm.generate(ids, params, **options)
            settings = settings_record(llm.settings)
            record = as_record(completion, llm.tokenizer)
            emit(to_json({**record, "settings": settings, "formulas": FORMULAS}))
        else:
            is_begun = False

            def show(piece: str) -> None:
                nonlocal is_begun
                is_begun = True
                emit(piece)

            try:
                completion = llm.generate(ids, params, on_text=show, **options)
                is_begun = True
            finally:
                if is_begun:
                    emit("\n")
    if args.trace is not None:
        save_trace(llm, args.trace)
    if not args.json and not args.quiet:
        say(summary(completion))
    return 0


def _answer_many(
    args: argparse.Namespace,
    prompts: dict[str, str],
    params: SamplingParams | list[SamplingParams],
    options: GenerateOptions,
) -> int:
    """Named prompts, several at once; ``params`` are one for all or one for each."""
    titles = [name if args.n > 1 else shortened(text) for name, text in prompts.items()]
    with busy(f"loading {args.bundle}", quiet=args.quiet, plain=False) as announce:
        llm = open_for(args, mode=args.mode, max_batch=args.batch, announce=announce)
    with llm:
        ids = _encode(args, llm, prompts)
        show = InOrder(lambda i, done: emit(f"[{i + 1}] {titles[i]}\n{done.text}\n\n"))
        num_done = 0
        with progress("answers", len(prompts), quiet=args.quiet or not args.json) as tick:

            def on_done(index: int, completion: Completion) -> None:
                nonlocal num_done
                num_done += 1
                tick(num_done, f"{len(completion.token_ids)} tokens")
                if not args.json:
                    show(index, completion)

            started = perf_counter()
            completions = llm.generate_batch(ids, params, on_done=on_done, **options)
            answered = Run(tuple(completions), llm.settings, perf_counter() - started)
        if args.json:
            emit(to_json(answered.as_record(llm.tokenizer)))
    if args.trace is not None:
        save_trace(llm, args.trace)
    if not args.json and not args.quiet:
        say(answered.summary())
    return 0


def _encode(args: argparse.Namespace, llm: LLM, prompts: dict[str, str]) -> list[list[int]]:
    """Token ids of named prompts, each of which must fit."""
    if args.chat and not llm.has_chat_template:
        raise UsageError(f"--chat needs a chat template, and {args.bundle} has none; drop it")
    encoded = []
    for name, prompt in prompts.items():
        ids = llm.encode(prompt, chat=args.chat)
        check_fits(name, len(ids), llm.limits.max_len)
        encoded.append(ids)
    is_told_later = llm.mode == AUTO and not args.json  # with the answer's summary
    if llm.note and not args.quiet and not is_told_later:
        say(f"note: {llm.note}")
    return encoded
