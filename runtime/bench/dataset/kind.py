"""``bench --dataset`` as a kind of measurement."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from runtime.bench.dataset.interval import RESAMPLES
from runtime.bench.kind import Kind, Show
from runtime.cli.report import FORMULAS as SHARED

if TYPE_CHECKING:
    from runtime.bench.dataset.report import DatasetFigures

FORMULAS = {
    "tokens/s": "tokens that came, the one that ended a text included / seconds of decoding, "
    "reading the prompt left out; all prompts of the category together, each with the median of "
    "its passes",
    "speed-up": "tokens/s / tokens/s of ar in the same run; contestants take turns prompt by "
    "prompt, each time in another order",
    "median": "of the prompts' own ratios; a prompt's is the median over the passes of tokens/s / "
    "tokens/s of ar in the same pass",
    "with prompt": "the speed-up where seconds count from the request on",
    "95 %": f"percentile bootstrap over the prompts, {RESAMPLES} times, seeded; of few prompts it "
    "is too narrow",
    "prompt": "milliseconds from the request to the end of its prompt, median",
    "TTFT": "milliseconds from the request to its first token, reading the prompt included",
    "TPOT": "(last arrival - first arrival) / (tokens that came - 1), of a request",
    "ITL": "milliseconds between two arrivals of tokens; those of one round arrive at once",
    "p50, p90, p99": "over requests (ITL: over arrivals) of all passes, interpolated linearly",
    "identical": "prompts whose tokens equal those of ar in every pass; a peer's may differ",
}

OF_DRAFTS = {
    "acceptance length": "tokens that came / verifications, bonus tokens and rounds without drafts "
    "included; the prompt's own pass is no verification, and what was accepted behind the end of "
    "a text has not come",
    "rate": "drafted tokens that were accepted / drafted tokens, up to the end of the text",
    "by place": "drafted tokens of that place in a proposal that were accepted / drafted",
    "hit rate": SHARED["hit_rate"],
    "looked up": "rounds whose drafts were copied from the text / rounds",
}
OF_PEERS = {
    "peers": "greedy, prompts of the same ids, cut to as many new tokens as ar gave",
}


def _measure(args: argparse.Namespace, show: Show) -> DatasetFigures:
    from runtime.bench.dataset.command import measure

    return measure(args, show)


KIND = Kind(
    name="dataset",
    purpose="all modes on the same prompts, by category",
    description="",
    examples="",
    packages=("numpy", "onnxruntime", "tokenizers"),
    formulas=FORMULAS | OF_DRAFTS | OF_PEERS,
    add_options=lambda _: None,
    measure=_measure,
)
