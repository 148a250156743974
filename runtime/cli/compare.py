"""``python -m runtime compare``: the same prompts in every mode, in one table."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from engines.bundle import open_bundle
from engines.codec import encode
from engines.errors import BundleError, UsageError
from runtime.cli.comparison import Comparison
from runtime.cli.console import busy, emit, progress, say, tell
from runtime.cli.options import (
    MODES,
    Commands,
    add_bundle_options,
    add_command,
    add_output_options,
    check_fits,
    open_for,
    possible_modes,
    whole,
)
from runtime.cli.prompts import many_prompts, shortened
from runtime.cli.report import to_json
from runtime.cli.sampling import add_max_tokens, add_sampling_options, sampling_of
from runtime.cli.tally import BASELINE, ModeRun
from runtime.cli.tracing import add_trace_option, save_trace
from runtime.doctor import machine
from runtime.placement import AUTO, OPTION_DEFAULTS, OPTION_MODES, idle_options, require_batch

if TYPE_CHECKING:
    from runtime.llm import LLM, Completion
    from runtime.trace.timeline import Timeline

NUM_LIVE = 3
WARM_UP_TOKENS = 8

DESCRIPTION = """\
Run the same prompts with the same seed in every mode, one mode after another, and print one
table: speed, speed-up over plain decoding, acceptance length, cache hit rate, and whether the
output is identical to plain decoding; in a second one, how the drafting went. Exit code 1 if any
output differs."""

EXAMPLES = """\
Plain decoding (ar) always runs, first. Under --verify ratio at a temperature above 0 the tokens
legitimately depend on the drafts; they are then not compared. An option goes to the modes that
have it. --batch needs a bundle that was built for it: python -m export build --max-batch 4.

examples:
  python -m runtime compare --bundle engines/bundles/demo --live
  python -m runtime compare --bundle engines/bundles/demo --temperature 0.8 --seed 7 --json
  python -m runtime compare --bundle engines/bundles/demo --fallback jit --num-prompts 4
  python -m runtime compare --bundle BUILT_WITH_MAX_BATCH_4 --batch 4 --temperature 0,0.8
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
    speculation = add_bundle_options(parser)
    speculation.add_argument(
        "--modes",
        type=_modes,
        metavar="M,M",
        help="modes to run, of ar, sd, ssd, auto (default: those of ar,sd,ssd that the bundle was "
        "built for)",
    )
    _add_prompt_options(parser)
    add_sampling_options(parser, several=True)
    output = add_output_options(parser)
    output.add_argument(
        "--live", action="store_true", help=f"stream the text of the first {NUM_LIVE} prompts"
    )
    add_trace_option(output, "write for each mode (FILE's name with -MODE added)")
    parser.set_defaults(run=run)


def _add_prompt_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help=".txt with a prompt a line, or .jsonl with objects that have a prompt or turns "
        "(default: a built-in dozen)",
    )
    group.add_argument(
        "--num-prompts", type=whole(1), metavar="N", help="use the first N prompts only"
    )
    group.add_argument(
        "--batch",
        type=whole(1),
        default=1,
        metavar="N",
        help="prompts decoded at once (default: 1)",
    )
    group.add_argument(
        "--no-chat",
        action="store_true",
        help="take the prompts as they are, without the bundle's chat template",
    )
    add_max_tokens(group)


def _modes(text: str) -> tuple[str, ...]:
    """The baseline first, the others in the order given, each once."""
    names = [BASELINE, *(name.strip() for name in text.split(","))]
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no mode (choose from {', '.join(MODES)})"
            )
    return tuple(dict.fromkeys(names))


def _default_modes(args: argparse.Namespace) -> tuple[str, ...]:
    """Those that the bundle was built for and can run with its drafter."""
    modes = list(MODES)
    with suppress(BundleError):  # told by loading it
        modes = possible_modes(open_bundle(args.bundle), args, args.drafter)
    return tuple(mode for mode in modes if mode != AUTO)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if args.live and args.batch > 1:
        raise UsageError("--live shows one prompt after another; leave --batch away")
    args.modes = args.modes or _default_modes(args)
    _check_options(args)
    experiment = _Experiment(args, many_prompts(args.prompts, args.num_prompts))
    comparison = Comparison(
        runs=tuple(experiment.run_mode(mode) for mode in args.modes),
        comparable=args.verify == "coupled" or all(law.is_greedy for law in experiment.params),
        prompts=tuple(experiment.prompts),
        spell=experiment.spell,
        batch=args.batch,
    )
    if args.json:
        command = shlex.join(["python", "-m", "runtime", *args.command_line])
        header = {"machine": encode(machine()), "command": command}
        emit(to_json(header | comparison.as_record()))
    else:
        emit(f"\n{comparison.as_text()}machine = {machine()}\n")
    return 0 if comparison.is_identical else 1


def _check_options(args: argparse.Namespace) -> None:
    """Raise for what can be known before anything is loaded."""
    idle = [idle_options(mode, vars(args)) for mode in args.modes]
    if nowhere := [name for name in idle[0] if all(name in names for names in idle)]:
        modes = ",".join(args.modes)
        raise UsageError(f"{', '.join(nowhere)} has no effect in --modes {modes}; leave it away")
    with suppress(BundleError):  # told by loading it
        require_batch(args.batch, open_bundle(args.bundle).manifest.limits.max_batch)


def _for_mode(args: argparse.Namespace, mode: str) -> argparse.Namespace:
    """The options that ``mode`` has; all others ask for nothing."""
    asks = {
        name: default
        for name, default in OPTION_DEFAULTS.items()
        if mode not in (*OPTION_MODES[name], AUTO)
    }
    if mode == BASELINE:
        asks["adaptive_length"] = False
    return argparse.Namespace(**vars(args) | asks)


def _forget(timeline: Timeline) -> None:
    """The warm-up is in none of the figures, so it is not in the trace either."""
    timeline.spans.clear()
    timeline.moments.clear()


class _Experiment:
    """Runs every prompt in one mode after another; a mode has the machine to itself."""

    def __init__(self, args: argparse.Namespace, prompts: list[str]) -> None:
        self.args = args
        self.prompts = prompts
        laws = cycle([sampling_of(args, temperature) for temperature in args.temperature])
        self.params = [next(laws) for _ in prompts]
        self._prompt_ids: list[list[int]] = []
        self.spell: Callable[[int], str] = str

    def run_mode(self, mode: str) -> ModeRun:
        args = self.args
        with busy(f"{mode}: loading {args.bundle}", quiet=args.quiet) as announce:
            llm = open_for(
                _for_mode(args, mode), mode=mode, max_batch=args.batch, announce=announce
            )
        with llm:
            if not self._prompt_ids:
                self._encode(llm)
            if llm.note and args.json and not args.quiet:  # else it stands under the table
                say(f"{mode}: {llm.note}")
            llm.generate(self._prompt_ids[0], self.params[0], max_tokens=WARM_UP_TOKENS)
            if llm.timeline is not None:
                _forget(llm.timeline)
            wall_s = None
            if args.batch > 1:
                completions, wall_s = self._together(llm, mode)
            else:
                completions = self._one_by_one(llm, mode)
        if args.trace is not None:
            save_trace(llm, args.trace.with_stem(f"{args.trace.stem}-{mode}"))
        return ModeRun(mode, llm.mode, llm.note, tuple(completions), llm.settings, wall_s)

    def _one_by_one(self, llm: LLM, mode: str) -> list[Completion]:
        args = self.args
        completions = self._live(llm, mode) if args.live else []
        done = len(completions)
        with progress(mode, len(self.prompts), quiet=args.quiet, done=done) as tick:
            for ids, law in list(zip(self._prompt_ids, self.params, strict=True))[done:]:
                completion = llm.generate(ids, law, max_tokens=args.max_tokens)
                completions.append(completion)
                tick(len(completions), f"{completion.stats.tokens_per_second:.1f} tokens/s")
        return completions

    def _together(self, llm: LLM, mode: str) -> tuple[list[Completion], float]:
        with progress(mode, len(self.prompts), quiet=self.args.quiet) as tick:
            num_done = count(1)
            started = perf_counter()
            completions = llm.generate_batch(
                self._prompt_ids,
                self.params,
                max_tokens=self.args.max_tokens,
                on_done=lambda _, done: tick(next(num_done), f"{len(done.token_ids)} tokens"),
            )
            return completions, perf_counter() - started

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
        rows = zip(self.prompts, self._prompt_ids, self.params, strict=True)
        for prompt, ids, law in list(rows)[:NUM_LIVE]:
            show(f"\n[{mode}] {shortened(prompt)}\n")
            try:
                completions.append(
                    llm.generate(ids, law, max_tokens=self.args.max_tokens, on_text=show)
                )
            finally:
                show("\n")
        return completions
