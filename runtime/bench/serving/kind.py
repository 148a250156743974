"""``bench serving`` as a kind of measurement."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from runtime.bench.kind import Kind, Show
from runtime.bench.serving.options import add_options

if TYPE_CHECKING:
    from runtime.bench.serving.report import ServingFigures

DESCRIPTION = """\
Load on a server as its clients see it: streamed requests, by so many clients that wait (closed
loop) or so many requests a second (open loop); times to the first token, between tokens and a
token, and throughput. --faults: nothing may be lost when other clients misbehave."""

EXAMPLES = """\
examples:
  python -m runtime bench serving --base-url http://127.0.0.1:8000 --concurrency 1,4,16
  python -m runtime bench serving --bundle engines/bundles/demo --request-rate 2 --num-prompts 50
  python -m runtime bench serving --bundle engines/bundles/demo --faults
  python -m runtime bench serving --base-url http://127.0.0.1:8000 --dataset spec_bench.jsonl \\
      --endpoint chat --concurrency 8 --save-result result.json

The exit code is 1 where a request failed, or a fault was another client's loss.
"""

FORMULAS = {
    "TTFT": "milliseconds from sending a request to its first piece of text",
    "TPOT": "(milliseconds to the answer's last piece or end - TTFT) / (its tokens - 1)",
    "ITL": "milliseconds between two pieces of text; tokens of one round come in one piece",
    "tokens/s": "tokens of all answers / seconds from the first request to the last answer",
    "tokens/round": "tokens emitted / rounds of all texts, with drafts or without, as the server "
    "counts them",
    "accepted/proposal + 1": "1 + accepted drafted tokens / proposals, as the server counts them; "
    "its rounds without a proposal are not in it, since it does not tell them",
    "proposals": "rounds that had drafted tokens to verify, as the server counts them",
    "cached": "prompt tokens that the server had read before, of all",
}


def _measure(args: argparse.Namespace, show: Show) -> ServingFigures:
    from runtime.bench.serving.command import measure

    return measure(args, show)


KIND = Kind(
    name="serving",
    purpose="load on a server, and faults",
    description=DESCRIPTION,
    examples=EXAMPLES,
    packages=("numpy", "onnxruntime", "fastapi", "uvicorn", "httpx2"),
    formulas=FORMULAS,
    add_options=add_options,
    measure=_measure,
)
