"""What is said of all contestants' answers to a data set, by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import median

import numpy as np

from runtime.bench.dataset.contestant import Sample
from runtime.bench.dataset.items import OVERALL, Item


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of ``num`` samples, interpolated linearly; None without one."""

    num: int
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ContestantFigures:
    """One contestant's answers to the prompts of a category; ``report.FORMULAS`` has the formulas.

    ``ratio`` and ``median_ratio`` are None for the baseline; ``hit_rate`` where nothing is
    prepared. ``acceptance`` has a share for each place of a proposal. ``num_rounds_by_mode``: what
    rounds ran as, which a contestant may change on its way.
    """

    name: str
    num_tokens: int
    num_rounds: int
    tokens_s: float
    ratio: float | None
    median_ratio: float | None
    tokens_round: float
    acceptance: tuple[float, ...]
    hit_rate: float | None
    ttft_ms: Percentiles
    itl_ms: Percentiles
    num_rounds_by_mode: dict[str, int]
    num_differing: int


@dataclass(frozen=True, slots=True)
class CategoryFigures:
    """All contestants on the prompts of one category, the baseline first."""

    name: str
    num_prompts: int
    contestants: tuple[ContestantFigures, ...]


Answers = Sequence[Sample]
"""Of one contestant to all items, in their order."""


def by_category(
    items: Sequence[Item], answers: Mapping[str, Answers]
) -> tuple[CategoryFigures, ...]:
    """The categories in the order of the file, and then all prompts together.

    ``answers`` by contestant; the first is what the others are compared with.
    """
    categories = dict.fromkeys(item.category for item in items)
    groups = {name: [item.category == name for item in items] for name in categories}
    if len(groups) > 1:
        groups[OVERALL] = [True] * len(items)
    return tuple(
        CategoryFigures(name, sum(chosen), tuple(_contestants(answers, chosen)))
        for name, chosen in groups.items()
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """The median, and what 10 % and 1 % of the values lie above."""
    if not values:
        return Percentiles(0, None, None, None)
    return Percentiles(len(values), *map(float, np.percentile(values, [50, 90, 99])))


def acceptance_by_place(samples: Iterable[Sample]) -> tuple[float, ...]:
    """Share of the drafted tokens at place 1, 2, ... of a proposal that were accepted."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for sample in samples:
        for block in sample.blocks:
            drafted.update(range(block.num_drafted))
            accepted.update(range(block.accepted))
    return tuple(accepted[place] / drafted[place] for place in sorted(drafted))


def _contestants(
    answers: Mapping[str, Answers], chosen: Sequence[bool]
) -> Iterable[ContestantFigures]:
    kept = {name: list(compress(each, chosen)) for name, each in answers.items()}
    baseline, *_ = kept
    for name, samples in kept.items():
        yield _figures(name, samples, kept[baseline], is_baseline=name == baseline)


def _figures(
    name: str, samples: Answers, baseline: Answers, *, is_baseline: bool
) -> ContestantFigures:
    blocks = [block for sample in samples for block in sample.blocks]
    hits = [block.hit for block in blocks if block.hit is not None]
    ttft = [sample.ttft_s * 1e3 for sample in samples if sample.ttft_s is not None]
    gaps = [gap * 1e3 for sample in samples for gap in sample.gaps_s]
    pairs = zip(samples, baseline, strict=True)
    return ContestantFigures(
        name=name,
        num_tokens=sum(len(sample.tokens) for sample in samples),
        num_rounds=len(blocks),
        tokens_s=_tokens_s(samples),
        ratio=None if is_baseline else _over(_tokens_s(samples), _tokens_s(baseline)),
        median_ratio=None if is_baseline else _median_ratio(samples, baseline),
        tokens_round=_over(sum(block.num_tokens for block in blocks), len(blocks)),
        acceptance=acceptance_by_place(samples),
        hit_rate=sum(hits) / len(hits) if hits else None,
        ttft_ms=percentiles(ttft),
        itl_ms=percentiles(gaps),
        num_rounds_by_mode=dict(Counter(block.mode for block in blocks)),
        num_differing=sum(ours.tokens != plain.tokens for ours, plain in pairs),
    )


def _tokens_s(samples: Answers) -> float:
    """Over all prompts together, so that a long answer counts for more than a short one."""
    tokens = sum(len(sample.tokens) for sample in samples)
    return _over(tokens, sum(sample.decode_s for sample in samples))


def _median_ratio(samples: Answers, baseline: Answers) -> float | None:
    """Of the prompts' own ratios: one disturbed prompt does not move it."""
    ratios = [
        _tokens_s([ours]) / _tokens_s([plain])
        for ours, plain in zip(samples, baseline, strict=True)
        if ours.tokens and plain.tokens and _tokens_s([plain])
    ]
    return median(ratios) if ratios else None


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
