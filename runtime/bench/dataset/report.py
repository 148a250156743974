"""A data set's figures for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.bench.dataset.figures import CategoryFigures, ContestantFigures, Percentiles
from runtime.bench.dataset.items import OVERALL
from runtime.cli.report import number, percent, table

SPEED_HEADERS = ("category", "mode", "tokens/s", "ratio", "median", "tokens/round", "hit rate")
LATENCY_HEADERS = (
    *("category", "mode", "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99"),
    *("accepted by place", "rounds as"),
)


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One answer: which line of the file, by whom, and what it took."""

    line: int
    category: str
    contestant: str
    num_tokens: int
    num_rounds: int
    decode_s: float
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """All of it. ``lines_left_out``: prompts too long for the bundle. ``notes`` by contestant: why
    one did not run as its name says."""

    dataset: str
    max_tokens: int
    temperature: float
    lines_left_out: tuple[int, ...]
    notes: dict[str, str]
    categories: tuple[CategoryFigures, ...]
    prompts: tuple[PromptRecord, ...]

    @property
    def is_identical(self) -> bool:
        """Every contestant gave the baseline's tokens to every prompt."""
        return not any(
            each.num_differing for category in self.categories for each in category.contestants
        )

    def as_text(self) -> str:
        """Two tables and the verdicts."""
        rows = [(category, each) for category in self.categories for each in category.contestants]
        total = self.categories[-1]
        num_categories = max(1, len(self.categories) - 1)
        summary = (
            f"{self.dataset}: prompts: {total.num_prompts}, categories: {num_categories}; at most "
            f"{self.max_tokens} tokens each"
        )
        lines = [
            summary,
            *self._left_out(),
            "",
            table(SPEED_HEADERS, [_speed(category, each) for category, each in rows]),
            table(LATENCY_HEADERS, [_latency(category, each) for category, each in rows]),
            *(f"{name}: {note}" for name, note in self.notes.items()),
            *map(_verdict, total.contestants[1:]),
            *self._lowest(),
        ]
        return "\n".join(lines)

    def _left_out(self) -> list[str]:
        if not self.lines_left_out:
            return []
        lines = ", ".join(map(str, self.lines_left_out))
        return [f"left out, too long for the bundle: lines {lines}"]

    def _lowest(self) -> list[str]:
        """Where each contestant gains least, or loses most."""
        lines = []
        parts = [category for category in self.categories if category.name != OVERALL]
        for place, each in enumerate(parts[0].contestants[1:], start=1):
            ratios = [(part.contestants[place].ratio or 0.0, part.name) for part in parts]
            ratio, category = min(ratios)
            lines.append(f"{each.name}: lowest ratio {ratio:.3f}, in {category}")
        return lines


def _verdict(figures: ContestantFigures) -> str:
    if not figures.num_differing:
        return f"{figures.name}: identical tokens on every prompt"
    return f"{figures.name}: tokens differ on {figures.num_differing} prompts"


def _speed(category: CategoryFigures, figures: ContestantFigures) -> list[str]:
    return [
        category.name,
        figures.name,
        number(figures.tokens_s, 1),
        number(figures.ratio, 3),
        number(figures.median_ratio, 3),
        number(figures.tokens_round, 2),
        percent(figures.hit_rate),
    ]


def _latency(category: CategoryFigures, figures: ContestantFigures) -> list[str]:
    rounds = figures.num_rounds_by_mode
    shares = " ".join(
        f"{mode} {count / max(1, figures.num_rounds):.0%}" for mode, count in sorted(rounds.items())
    )
    return [
        category.name,
        figures.name,
        *_three(figures.ttft_ms),
        *_three(figures.itl_ms),
        " ".join(f"{share:.2f}" for share in figures.acceptance) or "-",
        shares or "-",
    ]


def _three(values: Percentiles) -> list[str]:
    return [number(value, 1) for value in (values.p50, values.p90, values.p99)]
