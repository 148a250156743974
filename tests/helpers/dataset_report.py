"""Figures of a data set around categories that a test made up."""

from __future__ import annotations

from typing import Any

from runtime.bench.dataset.facts import BundleFacts
from runtime.bench.dataset.figures import CategoryFigures
from runtime.bench.dataset.report import DatasetFigures

FACTS = BundleFacts(
    name="tiny",
    target="tiny-target",
    num_parameters=1_500_000,
    draft="tiny-draft",
    num_draft_parameters=300_000,
    backend="onnxruntime",
    precision="fp32",
    num_bytes=7_000_000,
    max_len=160,
    num_draft=4,
    num_branches=6,
)


def figures_of(categories: tuple[CategoryFigures, ...], **more: Any) -> DatasetFigures:
    """One pass that was completed, unless ``more`` says otherwise."""
    fields: dict[str, Any] = {
        "dataset": "set.jsonl",
        "bundle": FACTS,
        "max_tokens": 9,
        "temperature": 0.0,
        "repeats": 1,
        "num_planned": 3,
        "num_done": 3,
        "failure": None,
        "lines_left_out": (),
        "descriptions": {},
        "notes": {},
        "categories": categories,
        "prompts": (),
    }
    return DatasetFigures(**fields | more)
