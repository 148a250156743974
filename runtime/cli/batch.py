"""``python -m runtime batch``: a file of requests in the form of OpenAI's batches, answered."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from engines.errors import BackendError
from runtime.cli.console import Tick, busy, emit, progress, say
from runtime.cli.options import (
    MODES,
    Commands,
    add_bundle_options,
    add_command,
    add_output_options,
    open_for,
    whole,
)
from runtime.cli.report import to_json
from runtime.cli.serve_ray import add_cluster_options, batch_options_of, wants_ray
from runtime.serve.batch.files import Answered, Answers, Asked, read_asked
from runtime.serve.process import require_packages

if TYPE_CHECKING:
    from runtime.llm import LLM

DESCRIPTION = """\
Answer a file of requests, one JSON object a line in the form of OpenAI's batches:
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": ...}}
What the server takes may stand in a body, but stream. Answers have the same form as OpenAI's, in
the order of the requests; a request that is refused says so in its answer, and the others go on."""

EXAMPLES = """\
examples:
  python -m runtime batch questions.jsonl answers.jsonl --bundle engines/bundles/demo
  python -m runtime batch questions.jsonl answers.jsonl --bundle engines/bundles/demo --json --quiet
  python -m runtime batch questions.jsonl answers.jsonl --bundle engines/bundles/demo \\
      --ray --replicas 2 --cpus-per-replica 2

An interrupted run leaves OUT.partial: the same command goes on behind it. Exit code 1: all lines
are answered, and some of them with an error.
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(commands, "batch", "answer a file of requests", DESCRIPTION, EXAMPLES)
    parser.add_argument("requests", type=Path, metavar="IN", help="file of requests (.jsonl)")
    parser.add_argument("answers", type=Path, metavar="OUT", help="file to write; must not exist")
    speculation = add_bundle_options(parser)
    speculation.add_argument(
        "--mode", choices=MODES, default="auto", help="how to decode (default: auto)"
    )
    speculation.add_argument(
        "--batch",
        type=whole(1),
        metavar="N",
        help="texts decoded at once (default: what the bundle was built for)",
    )
    add_cluster_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    require_packages()
    is_on_ray = wants_ray(args)
    asked = read_asked(args.requests)
    with closing(Answers(args.answers, asked)) as answers:
        left, started = answers.left, perf_counter()
        if answers.num_known and not args.quiet:
            say(f"{answers.num_known} of {len(asked)} were answered before; going on")
        tally = Tally(answers.num_known)
        if left:
            with _source(args, left, is_on_ray) as source, _bar(args, answers, len(asked)) as tick:
                for answered in source:
                    answers.add(answered)
                    tally.add(answered)
                    tick(answers.num_known, answered.custom_id)
        if tally.num_failed:
            raise BackendError(
                f"the engines failed on {tally.num_failed} of {len(asked)} requests "
                f"({tally.reason}); run the same command again to ask them again"
            )
        answers.finish()
    record = tally.as_record(perf_counter() - started)
    if args.json:
        emit(to_json(record))
    elif not args.quiet:
        say(
            f"{args.answers}: {len(asked)} answers, {tally.num_refused} of them refusals; "
            f"{tally.num_tokens} tokens in {record['seconds']:.1f} s"
        )
    return 1 if tally.num_refused else 0


class Tally:
    """What came of the lines of this run."""

    def __init__(self, num_resumed: int) -> None:
        self.num_resumed = num_resumed
        self.num_good = self.num_refused = self.num_failed = 0
        self.num_prompt_tokens = self.num_tokens = 0
        self.reason = ""

    def add(self, answered: Answered) -> None:
        usage = answered.body.get("usage") or {}
        self.num_good += answered.is_good
        self.num_refused += 400 <= answered.status < 500
        if answered.status >= 500:
            self.num_failed += 1
            self.reason = str(answered.body.get("error", {}).get("message", answered.status))
        self.num_prompt_tokens += usage.get("prompt_tokens", 0)
        self.num_tokens += usage.get("completion_tokens", 0)

    def as_record(self, seconds: float) -> dict[str, float]:
        return {
            "num_answered": self.num_good,
            "num_refused": self.num_refused,
            "num_resumed": self.num_resumed,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_tokens": self.num_tokens,
            "seconds": seconds,
            "tokens_per_second": self.num_tokens / seconds if seconds else 0.0,
        }


@contextmanager
def _bar(args: argparse.Namespace, answers: Answers, total: int) -> Iterator[Tick]:
    with progress("answers", total, quiet=args.quiet, done=answers.num_known) as tick:
        yield tick


@contextmanager
def _source(
    args: argparse.Namespace, left: Sequence[Asked], is_on_ray: bool
) -> Iterator[Iterator[Answered]]:
    """What answers the lines that are left."""
    if is_on_ray:
        from runtime.serve.ray.cluster import cluster
        from runtime.serve.ray.data import answers_on_ray, require_ray_data

        require_ray_data()
        options = batch_options_of(args)
        with cluster(options, args.ray_address):
            yield answers_on_ray(left, options)
        return
    with busy(f"loading {args.bundle}", quiet=args.quiet, plain=False) as announce:
        args.trace = None
        llm = open_for(args, mode=args.mode, max_batch=args.batch, announce=announce)
    if llm.note and not args.quiet:
        say(f"note: {llm.note}")
    with closing(_answers_here(llm, args.bundle.absolute().name, left)) as source:
        yield source


def _answers_here(
    llm: LLM, model_name: str, left: Sequence[Asked]
) -> Generator[Answered, None, None]:
    """By one pair in this process."""
    from runtime.async_llm import AsyncLLM
    from runtime.serve.batch.answering import Answering

    engines = AsyncLLM(llm)
    loop = asyncio.new_event_loop()
    try:
        source = Answering(engines, model_name=model_name).answers(left)
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(source))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(source.aclose())
    finally:
        engines.close()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
