"""The tables of a data set's report: what stands in a row of one contestant in one category."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.bench.dataset.figures import CategoryFigures, ContestantFigures, Percentiles
from runtime.bench.dataset.interval import Interval
from runtime.cli.report import number, percent


@dataclass(frozen=True, slots=True)
class Columns:
    """A table's headers, how a row is made, and whose there is one."""

    headers: tuple[str, ...]
    row: Callable[[CategoryFigures, ContestantFigures], list[str]]
    has_row: Callable[[ContestantFigures], bool] = lambda _: True

    def rows(self, categories: Sequence[CategoryFigures]) -> list[list[str]]:
        """Of every contestant in every category, where it has one."""
        return [
            self.row(category, each)
            for category in categories
            for each in category.contestants
            if self.has_row(each)
        ]


def interval_text(interval: Interval | None) -> str:
    """``0.912 to 1.034``."""
    return "-" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"


def rounds_text(rounds: Mapping[str, int]) -> str:
    """``sd 40% ssd 60%``."""
    total = max(1, sum(rounds.values()))
    return " ".join(f"{mode} {num / total:.0%}" for mode, num in sorted(rounds.items())) or "-"


def identity_text(figures: ContestantFigures, num_prompts: int) -> str:
    """``12 of 12``."""
    return f"{num_prompts - figures.num_differing} of {num_prompts}"


def by_place_text(figures: ContestantFigures) -> str:
    """``0.61 0.37``."""
    return " ".join(f"{share:.2f}" for share in figures.acceptance) or "-"


def drafts(figures: ContestantFigures) -> bool:
    """It drafted something."""
    return figures.num_drafted > 0


def _speed(category: CategoryFigures, figures: ContestantFigures) -> list[str]:
    return [
        category.name,
        figures.name,
        str(category.num_prompts),
        number(figures.tokens_s, 1),
        number(figures.ratio, 3),
        interval_text(figures.ratio_interval),
        number(figures.median_ratio, 3),
        interval_text(figures.median_interval),
        number(figures.whole_ratio, 3),
        identity_text(figures, category.num_prompts),
    ]


def _drafts(category: CategoryFigures, figures: ContestantFigures) -> list[str]:
    return [
        category.name,
        figures.name,
        number(figures.acceptance_length, 2),
        percent(figures.acceptance_rate),
        by_place_text(figures),
        percent(figures.hit_rate),
        percent(figures.num_lookups / figures.num_rounds if figures.num_rounds else None),
        rounds_text(figures.num_rounds_by_mode),
    ]


def _latency(category: CategoryFigures, figures: ContestantFigures) -> list[str]:
    return [
        category.name,
        figures.name,
        number(figures.prompt_ms.p50, 1),
        *_three(figures.ttft_ms),
        *_three(figures.tpot_ms),
        *_three(figures.itl_ms),
    ]


def _three(values: Percentiles) -> list[str]:
    return [number(value, 1) for value in (values.p50, values.p90, values.p99)]


SPEED = Columns(
    (
        *("category", "mode", "prompts", "tokens/s", "speed-up", "95 %", "median", "95 %"),
        *("with prompt", "identical"),
    ),
    _speed,
)
DRAFTS = Columns(
    (
        *("category", "mode", "acceptance length", "rate", "by place", "hit rate", "looked up"),
        "rounds as",
    ),
    _drafts,
    has_row=drafts,
)
LATENCY = Columns(
    (
        *("category", "mode", "prompt ms", "TTFT p50", "p90", "p99"),
        *("TPOT p50", "p90", "p99", "ITL p50", "p90", "p99"),
    ),
    _latency,
)
