"""The figures of a comparison: what one mode did over all prompts, next to plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.llm import Completion, Stats


@dataclass(frozen=True, slots=True)
class ModeRun:
    """All prompts in one mode. ``ran`` differs from ``mode`` where that mode could not run."""

    mode: str
    ran: str
    note: str | None
    completions: tuple[Completion, ...]

    @property
    def stats(self) -> list[Stats]:
        return [completion.stats for completion in self.completions]

    @property
    def num_tokens(self) -> int:
        return sum(stats.num_tokens for stats in self.stats)

    @property
    def decode_s(self) -> float:
        return sum(stats.decode_s for stats in self.stats)

    @property
    def tokens_per_second(self) -> float:
        """Over all prompts together, so that a long answer counts for more than a short one."""
        return self.num_tokens / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def median_tokens_per_second(self) -> float:
        return median(stats.tokens_per_second for stats in self.stats)

    @property
    def acceptance_length(self) -> float | None:
        """None where nothing was verified."""
        return _ratio(
            sum(stats.num_emitted for stats in self.stats),
            sum(stats.num_rounds for stats in self.stats),
        )

    @property
    def hit_rate(self) -> float | None:
        """None where nothing was prepared ahead, or nothing verified."""
        known = [(stats.num_hits, stats.num_rounds) for stats in self.stats]
        if any(hits is None for hits, _ in known):
            return None
        return _ratio(sum(hits or 0 for hits, _ in known), sum(rounds for _, rounds in known))


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where a mode's tokens differ from plain decoding's; None: it ended there."""

    prompt: int
    index: int
    expected: int | None
    found: int | None


def differing_prompts(run: ModeRun, baseline: ModeRun) -> list[int]:
    """Indices of the prompts whose tokens differ."""
    pairs = zip(run.completions, baseline.completions, strict=True)
    return [i for i, (ours, plain) in enumerate(pairs) if ours.token_ids != plain.token_ids]


def first_divergence(run: ModeRun, baseline: ModeRun) -> Divergence | None:
    """Of the first differing prompt; None when all tokens are equal."""
    for prompt in differing_prompts(run, baseline):
        found, expected = (each.completions[prompt].token_ids for each in (run, baseline))
        for index, (plain, ours) in enumerate(zip_longest(expected, found)):
            if plain != ours:
                return Divergence(prompt, index, plain, ours)
    return None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
