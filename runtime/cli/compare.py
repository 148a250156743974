"""``python -m runtime compare``: the same prompts in every mode, in one table."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engines.codec import encode
from runtime.cli.comparison import Comparison, shortened
from runtime.cli.console import busy, emit, progress, say, tell
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
    whole,
)
from runtime.cli.prompts import many_prompts
from runtime.cli.report import to_json
from runtime.cli.tally import ModeRun
from runtime.doctor import machine

if TYPE_CHECKING:
    from runtime.llm import LLM, Completion

BASELINE = "ar"
NUM_LIVE = 3
WARM_UP_TOKENS = 8

DESCRIPTION = """\
Run the same prompts with the same seed in every mode, one mode after another, and print one
table: speed, speed-up over plain decoding, acceptance length, cache hit rate, and whether the
output is identical to plain decoding. Exit code 1 if any output differs."""

EXAMPLES = """\
Plain decoding (ar) always runs, first. Under --verify ratio at a temperature above 0 the tokens
legitimately depend on the drafts; they are then not compared.

examples:
  python -m runtime compare --bundle engines/bundles/demo --live
  python -m runtime compare --bundle engines/bundles/demo --temperature 0.8 --seed 7 --json
  python -m runtime compare --bundle engines/bundles/demo --prompts spec_bench.jsonl \\
      --num-prompts 20 --modes ar,ssd
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands,
        "compare",
        "run the same prompts in every mode and compare speed and output",
        DESCRIPTION,
        EXAMPLES,
    )
    add_bundle_options(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help=".txt with a prompt a line, or .jsonl with objects that have a prompt or turns "
        "(default: a built-in dozen)",
    )
    parser.add_argument(
        "--num-prompts", type=whole(1), metavar="N", help="use the first N prompts only"
    )
    parser.add_argument(
        "--modes",
        type=_modes,
        default=("ar", "sd", "ssd"),
        metavar="M,M",
        help="modes to run, of ar, sd, ssd, auto (default: ar,sd,ssd)",
    )
    parser.add_argument(
        "--no-chat",
        action="store_true",
        help="take the prompts as they are, without the bundle's chat template",
    )
    parser.add_argument(
        "--live", action="store_true", help=f"stream the text of the first {NUM_LIVE} prompts"
    )
    add_sampling_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def _modes(text: str) -> tuple[str, ...]:
    """The baseline first, the others in the order given, each once."""
    names = [BASELINE, *(name.strip() for name in text.split(","))]
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no mode (choose from {', '.join(MODES)})"
            )
    return tuple(dict.fromkeys(names))


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    experiment = _Experiment(args, many_prompts(args.prompts, args.num_prompts))
    comparison = Comparison(
        runs=tuple(experiment.run_mode(mode) for mode in args.modes),
        comparable=args.verify == "coupled" or experiment.params.is_greedy,
        prompts=tuple(experiment.prompts),
        spell=experiment.spell,
    )
    if args.json:
        command = shlex.join(["python", "-m", "runtime", *args.command_line])
        header = {"machine": encode(machine()), "command": command}
        emit(to_json(header | comparison.as_record()))
    else:
        emit(f"\n{comparison.as_text()}machine = {machine()}\n")
    return 0 if comparison.is_identical else 1


class _Experiment:
    """Runs every prompt in one mode after another; a mode has the machine to itself."""

    def __init__(self, args: argparse.Namespace, prompts: list[str]) -> None:
        self.args = args
        self.prompts = prompts
        self.params = sampling_of(args)
        self._prompt_ids: list[list[int]] = []
        self.spell: Callable[[int], str] = str

    def run_mode(self, mode: str) -> ModeRun:
        args = self.args
        open_llm: OpenLlm = args.open_llm
        with busy(f"{mode}: loading {args.bundle}", quiet=args.quiet):
            llm = open_llm(
                args.bundle,
                mode=mode,
                verify=args.verify,
                num_draft=args.num_draft,
                branches=args.branches,
            )
        with llm:
            if not self._prompt_ids:
                self._encode(llm)
            if llm.note and not args.quiet:
                say(f"{mode}: {llm.note}")
            llm.generate(self._prompt_ids[0], self.params, max_tokens=WARM_UP_TOKENS)
            completions = self._live(llm, mode) if args.live else []
            with progress(mode, len(self.prompts), quiet=args.quiet, done=len(completions)) as tick:
                for ids in self._prompt_ids[len(completions) :]:
                    completion = llm.generate(ids, self.params, max_tokens=args.max_tokens)
                    completions.append(completion)
                    tick(len(completions), f"{completion.stats.tokens_per_second:.1f} tokens/s")
            return ModeRun(mode, llm.mode, llm.note, tuple(completions))

    def _encode(self, llm: LLM) -> None:
        """Once for all modes: a template that names the date must not differ between them."""
        is_chat = llm.has_chat_template and not self.args.no_chat
        for i, prompt in enumerate(self.prompts, start=1):
            ids = llm.encode(prompt, chat=is_chat)
            check_fits(f"prompt {i}", len(ids), llm.limits.max_len)
            self._prompt_ids.append(ids)
        decode = llm.tokenizer.decode
        self.spell = lambda token_id: repr(decode([token_id]))

    def _live(self, llm: LLM, mode: str) -> list[Completion]:
        show = tell if self.args.json else emit
        completions = []
        for prompt, ids in list(zip(self.prompts, self._prompt_ids, strict=True))[:NUM_LIVE]:
            show(f"\n[{mode}] {shortened(prompt)}\n")
            try:
                completions.append(
                    llm.generate(ids, self.params, max_tokens=self.args.max_tokens, on_text=show)
                )
            finally:
                show("\n")
        return completions
