"""``python -m runtime chat``: a conversation at the terminal, each answer streamed."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

from engines.errors import CapacityError, UsageError, as_line
from runtime.cli.answers import summary
from runtime.cli.console import busy, emit, say
from runtime.cli.options import MODES, Commands, add_bundle_options, add_command, open_for, text
from runtime.cli.sampling import (
    add_ending_options,
    add_sampling_options,
    options_of,
    sampling_of,
)
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from runtime.llm import LLM

DESCRIPTION = """\
Talk with the target model through the bundle's chat template. Each line of stdin is a turn, each
answer is streamed to stdout, with a line on the speed to stderr."""

EXAMPLES = """\
in the conversation:
  /clear   forget it and begin anew
  /exit    end, as the end of the input does (ctrl-D)
  ctrl-C   end the answer that is being written; at the prompt, end

Where the conversation grows longer than the bundle holds, its oldest turns are forgotten, and a
line says so.

examples:
  python -m runtime chat --bundle engines/bundles/demo
  python -m runtime chat --bundle engines/bundles/demo --system "Answer in one sentence." \\
      --temperature 0.7 --seed 3
"""

ROOM_SHARE = 4
"""A conversation leaves at least this part (one in four) of the context to the answer, or what
--max-tokens asks for where that is less."""

Message = dict[str, str]


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(commands, "chat", "talk with a model", DESCRIPTION, EXAMPLES)
    speculation = add_bundle_options(parser)
    speculation.add_argument(
        "--mode", choices=MODES, default="auto", help="how to decode (default: auto)"
    )
    parser.add_argument(
        "--system", type=text, metavar="TEXT", help="what the model is told before the first turn"
    )
    add_sampling_options(parser, several=False)
    add_ending_options(parser, max_tokens=512)
    parser.add_argument("--quiet", action="store_true", help="answers and errors only")
    parser.set_defaults(run=run, trace=None)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    params = sampling_of(args, args.temperature)
    options = options_of(args)
    with busy(f"loading {args.bundle}", quiet=args.quiet, plain=False) as announce:
        llm = open_for(args, mode=args.mode, max_batch=1, announce=announce)
    with llm:
        if not llm.has_chat_template:
            raise UsageError(f"{args.bundle} has no chat template; use generate instead of chat")
        if llm.note and not args.quiet:
            say(f"note: {llm.note}")
        talk = Conversation(llm, params, options, system=args.system, quiet=args.quiet)
        for line in _turns():
            if line == "/clear":
                talk.clear()
            elif line == "/exit":
                break
            elif line.strip():
                talk.answer(line)
    return 0


class Conversation:
    """The turns so far, and the model that answers them."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        options: GenerateOptions,
        *,
        system: str | None,
        quiet: bool,
    ) -> None:
        self._llm = llm
        self._params = params
        self._options = options
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._turns: list[Message] = []
        self._quiet = quiet

    def clear(self) -> None:
        """Forget all turns."""
        self._turns.clear()

    def answer(self, question: str) -> None:
        """Stream the answer to one more turn. One that cannot be put to the model changes nothing.

        Raises UsageError for parameters or options that no turn could be answered with.
        """
        try:
            turns, ids = self._fitting([*self._turns, {"role": "user", "content": question}])
        except (UsageError, CapacityError) as error:
            say("error: " + as_line(str(error)))
            return
        with _interrupts(self._llm.cancel):
            done = self._llm.generate(ids, self._params, on_text=emit, **self._options)
        emit("\n")
        self._turns = [*turns, {"role": "assistant", "content": done.text}]
        if not self._quiet:
            say(summary(done))

    def _fitting(self, turns: list[Message]) -> tuple[list[Message], list[int]]:
        """As many of the last turns as leave room for an answer, and their prompt's ids."""
        max_len = self._llm.limits.max_len
        room = max_len - min(self._options["max_tokens"], max_len // ROOM_SHARE)
        kept = turns
        while True:
            with suppress(CapacityError):
                ids = self._llm.encode_chat([*self._system, *kept])
                if len(ids) <= room:
                    break
            if len(kept) == 1:
                raise CapacityError(
                    f"this turn alone leaves no room for an answer in the {max_len} tokens this "
                    "bundle was built for; shorten it"
                )
            kept = kept[2:]  # a question goes with its answer
        num_forgotten = (len(turns) - len(kept)) // 2
        if num_forgotten and not self._quiet:
            say(f"note: the first {num_forgotten} turns no longer fit, and are forgotten")
        return kept, ids


def _turns() -> Iterator[str]:
    """Lines of stdin; a terminal is asked for each. Raises UsageError for one that is no text."""
    if sys.stdin is None:  # the shell closed it
        return
    if sys.stdin.isatty():
        yield from _typed()
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"line {number} of stdin is not UTF-8 (byte {error.start}); convert it first"
            ) from None


def _typed() -> Iterator[str]:
    with suppress(ImportError):
        import_module("readline")  # input then has a history, and keys to edit with
    while True:
        try:
            yield input("> ")
        except EOFError:
            emit("\n")
            return
        except UnicodeDecodeError:
            say("error: that line is not UTF-8")


@contextmanager
def _interrupts(cancel: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C ends what runs, and not the command."""

    def heard(_signal: int, _frame: FrameType | None) -> None:
        cancel()

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
