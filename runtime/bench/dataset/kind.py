"""``bench --dataset`` as a kind of measurement."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from runtime.bench.kind import Kind, Show
from runtime.cli.report import FORMULAS as SHARED

if TYPE_CHECKING:
    from runtime.bench.dataset.report import DatasetFigures

FORMULAS = {
    "tokens/s": SHARED["tokens_per_second"] + ", all prompts of the category together",
    "ratio": "tokens/s / tokens/s of ar in the same run; modes take turns prompt by prompt, "
    "each time in another order. median: of the prompts' own ratios",
    "tokens/round": "tokens that came / verifications, bonus tokens included",
    "hit rate": SHARED["hit_rate"],
    "TTFT": "milliseconds from the request to its first token, reading the prompt included",
    "ITL": "milliseconds between two arrivals of tokens; those of one round arrive at once",
    "accepted by place": "drafted tokens of that place in a proposal that were accepted / drafted",
    "identical": "prompts whose tokens equal those of ar",
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
    formulas=FORMULAS,
    add_options=lambda _: None,
    measure=_measure,
)
