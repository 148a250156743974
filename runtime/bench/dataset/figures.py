"""What is said of all contestants' answers to a data set, by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from statistics import median
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from runtime.bench.dataset.contestant import Sample
from runtime.bench.dataset.interval import Interval, median_interval, total_ratio_interval
from runtime.bench.dataset.items import OVERALL, Item

Answers: TypeAlias = Sequence[Sequence[Sample]]
"""Of one contestant: to each prompt, its answers, one a pass."""
Work: TypeAlias = npt.NDArray[np.float64]
"""[prompts, 2]: emitted tokens, and the median over the passes of their seconds."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of ``num`` samples, interpolated linearly; None without one."""

    num: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ContestantFigures:
    """One contestant's answers to the prompts of a category; ``kind.FORMULAS`` has the formulas.

    ``num_tokens`` and ``num_differing`` are of the prompts, everything with rounds and latencies
    of all passes; tokens include the one that ended a text. The ratios are None for the baseline,
    their intervals also for a single prompt; ``whole_tokens_s`` and ``whole_ratio`` count the
    reading of the prompts, too. ``acceptance_rate`` is None where
    nothing was drafted, ``hit_rate`` where nothing is prepared. ``acceptance`` has a share for
    each place of a proposal. ``num_rounds_by_mode``: what rounds ran as, which a contestant may
    change on its way. ``num_proposals``: rounds that verified drafts; ``num_lookups``: those whose
    drafts were copied from the text.
    """

    name: str
    is_peer: bool
    num_tokens: int
    num_rounds: int
    num_proposals: int
    num_drafted: int
    num_accepted: int
    num_lookups: int
    tokens_s: float
    ratio: float | None
    ratio_interval: Interval | None
    median_ratio: float | None
    median_interval: Interval | None
    whole_tokens_s: float
    whole_ratio: float | None
    whole_interval: Interval | None
    acceptance_length: float
    acceptance_rate: float | None
    acceptance: tuple[float, ...]
    hit_rate: float | None
    prompt_ms: Percentiles
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    num_rounds_by_mode: dict[str, int]
    num_differing: int


@dataclass(frozen=True, slots=True)
class CategoryFigures:
    """All contestants on the prompts of one category, the baseline first."""

    name: str
    num_prompts: int
    contestants: tuple[ContestantFigures, ...]


def by_category(
    items: Sequence[Item], answers: Mapping[str, Answers], peers: Iterable[str] = ()
) -> tuple[CategoryFigures, ...]:
    """The categories in the order of the file, and then all prompts together.

    ``answers`` by contestant; the first is what the others are compared with. ``peers`` are those
    whose tokens may differ.
    """
    categories = dict.fromkeys(item.category for item in items)
    groups = {name: [item.category == name for item in items] for name in categories}
    if len(groups) > 1:
        groups[OVERALL] = [True] * len(items)
    others = set(peers)
    return tuple(
        CategoryFigures(name, sum(chosen), tuple(_contestants(answers, chosen, others)))
        for name, chosen in groups.items()
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """The mean, the median, and what 10 % and 1 % of the values lie above."""
    if not values:
        return Percentiles(0, None, None, None, None)
    spread = map(float, np.percentile(values, [50, 90, 99]))
    return Percentiles(len(values), float(np.mean(values)), *spread)


def acceptance_by_place(samples: Iterable[Sample]) -> tuple[float, ...]:
    """Share of the drafted tokens at place 1, 2, ... of a proposal that were accepted."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for sample in samples:
        for block in sample.blocks:
            drafted.update(range(block.num_drafted))
            accepted.update(range(block.accepted))
    return tuple(accepted[place] / drafted[place] for place in sorted(drafted))


def paired_ratios(ours: Answers, baseline: Answers) -> npt.NDArray[np.float64]:
    """Of each prompt that both answered with some token: the median over the passes of
    tokens/s / the baseline's tokens/s in the same pass, which met the same machine."""
    ratios = []
    for own, plain in zip(ours, baseline, strict=True):
        pairs = zip(own, plain, strict=False)  # the last pass may have been interrupted
        of_prompt = [
            _rate(mine) / _rate(theirs) for mine, theirs in pairs if _rate(mine) and _rate(theirs)
        ]
        if of_prompt:
            ratios.append(median(of_prompt))
    return np.asarray(ratios, np.float64)


def _contestants(
    answers: Mapping[str, Answers], chosen: Sequence[bool], peers: set[str]
) -> Iterable[ContestantFigures]:
    kept = {name: list(compress(each, chosen)) for name, each in answers.items()}
    baseline, *_ = kept
    for name, ours in kept.items():
        yield _figures(name, ours, kept[baseline], name == baseline, name in peers)


def _figures(
    name: str, ours: Answers, baseline: Answers, is_baseline: bool, is_peer: bool
) -> ContestantFigures:
    samples = list(chain.from_iterable(ours))
    blocks = [block for sample in samples for block in sample.blocks]
    hits = [block.hit for block in blocks if block.hit is not None]
    decoding, plain_decoding = _work(ours, _decode_s), _work(baseline, _decode_s)
    answering = _work(ours, _whole_s)
    ratios = () if is_baseline else paired_ratios(ours, baseline)
    speed = whole = _Ratio(None, None)
    if not is_baseline:
        speed = _ratio(decoding, plain_decoding)
        whole = _ratio(answering, _work(baseline, _whole_s))
    num_drafted = sum(block.num_drafted for block in blocks)
    num_accepted = sum(block.accepted for block in blocks)
    return ContestantFigures(
        name=name,
        is_peer=is_peer,
        num_tokens=int(decoding[:, 0].sum()),
        num_rounds=len(blocks),
        num_proposals=sum(block.num_drafted > 0 for block in blocks),
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        num_lookups=sum(block.is_lookup for block in blocks),
        tokens_s=_over(*decoding.sum(axis=0)),
        ratio=speed.value,
        ratio_interval=speed.interval,
        median_ratio=float(np.median(ratios)) if len(ratios) else None,
        median_interval=median_interval(np.asarray(ratios)),
        whole_tokens_s=_over(*answering.sum(axis=0)),
        whole_ratio=whole.value,
        whole_interval=whole.interval,
        acceptance_length=_over(sum(block.num_tokens for block in blocks), len(blocks)),
        acceptance_rate=num_accepted / num_drafted if num_drafted else None,
        acceptance=acceptance_by_place(samples),
        hit_rate=sum(hits) / len(hits) if hits else None,
        prompt_ms=_milliseconds(sample.prompt_s for sample in samples),
        ttft_ms=_milliseconds(sample.ttft_s for sample in samples),
        tpot_ms=_milliseconds(sample.tpot_s for sample in samples),
        itl_ms=_milliseconds(gap for sample in samples for gap in sample.gaps_s),
        num_rounds_by_mode=dict(Counter(block.mode for block in blocks)),
        num_differing=sum(map(_differs, ours, baseline)),
    )


def _work(answers: Answers, seconds: Callable[[Sample], float]) -> Work:
    rows = [(of_prompt[0].num_emitted, median(map(seconds, of_prompt))) for of_prompt in answers]
    return np.asarray(rows, np.float64).reshape(len(rows), 2)


@dataclass(frozen=True, slots=True)
class _Ratio:
    value: float | None
    interval: Interval | None


def _ratio(ours: Work, baseline: Work) -> _Ratio:
    """Of all tokens a second, of the prompts that both answered with some token."""
    both = (ours.min(axis=1) > 0) & (baseline.min(axis=1) > 0)
    if not both.any():
        return _Ratio(None, None)
    rates = [_over(*each[both].sum(axis=0)) for each in (ours, baseline)]
    return _Ratio(_over(*rates), total_ratio_interval(ours[both], baseline[both]))


def _decode_s(sample: Sample) -> float:
    return sample.decode_s


def _whole_s(sample: Sample) -> float:
    return sample.whole_s


def _differs(ours: Sequence[Sample], baseline: Sequence[Sample]) -> bool:
    return any(sample.tokens != baseline[0].tokens for sample in ours)


def _rate(sample: Sample) -> float:
    return _over(sample.num_emitted, sample.decode_s)


def _milliseconds(seconds: Iterable[float | None]) -> Percentiles:
    return percentiles([each * 1e3 for each in seconds if each is not None])


def _over(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
