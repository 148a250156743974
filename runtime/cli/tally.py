"""The figures of a comparison: what one mode did over all prompts, next to plain decoding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import TYPE_CHECKING

from runtime.spec.plan import MODES
from runtime.stats import Shared, SourceCounts, together

if TYPE_CHECKING:
    from runtime.llm import Completion, Stats
    from runtime.settings import Settings


BASELINE = "ar"
"""The mode that the others are compared with."""


@dataclass(frozen=True, slots=True)
class ModeRun:
    """All prompts in one mode. ``ran`` differs from ``mode`` where that mode could not run.

    ``wall_s`` are the seconds of all prompts together, where several were decoded at once. Their
    own seconds overlap then, and totals are the device's.
    """

    mode: str
    ran: str
    note: str | None
    completions: tuple[Completion, ...]
    settings: Settings
    wall_s: float | None = None

    @property
    def stats(self) -> list[Stats]:
        return [completion.stats for completion in self.completions]

    @property
    def num_tokens(self) -> int:
        return sum(stats.num_tokens for stats in self.stats)

    @property
    def shared(self) -> Shared | None:
        """The device's own figures; None where prompts ran one by one, whose figures add up."""
        return None if self.wall_s is None else together(self.stats)

    @property
    def decode_s(self) -> float:
        """Seconds in which any prompt was being decoded."""
        if self.shared is not None:
            return self.shared.decode_s
        return sum(stats.decode_s for stats in self.stats)

    @property
    def tokens_per_second(self) -> float:
        """Over all prompts together, so that a long answer counts for more than a short one."""
        seconds = self.decode_s if self.wall_s is None else self.wall_s
        return self.num_tokens / seconds if seconds > 0 else 0.0

    @property
    def median_tokens_per_second(self) -> float:
        return median(stats.tokens_per_second for stats in self.stats)

    @property
    def acceptance_length(self) -> float | None:
        """None where nothing was verified."""
        return _ratio(sum(stats.num_emitted for stats in self.stats), self.num_rounds)

    @property
    def hit_rate(self) -> float | None:
        """None where nothing was prepared ahead, or nothing looked up."""
        return _ratio(sum(stats.num_hits or 0 for stats in self._preparing), self.num_lookups)

    @property
    def hit_rate_after_hit(self) -> float | None:
        return _ratio(
            sum(stats.num_hits_after_hit for stats in self._preparing),
            sum(stats.num_rounds_after_hit for stats in self._preparing),
        )

    @property
    def hit_rate_after_miss(self) -> float | None:
        return _ratio(
            sum(stats.num_hits_after_miss for stats in self._preparing),
            sum(stats.num_rounds_after_miss for stats in self._preparing),
        )

    @property
    def num_lookups(self) -> int:
        """Outcomes that were looked for among the prepared ones."""
        return sum(
            stats.num_rounds_after_hit + stats.num_rounds_after_miss for stats in self._preparing
        )

    @property
    def _preparing(self) -> list[Stats]:
        return [stats for stats in self.stats if stats.num_hits is not None]

    @property
    def predicted_hit_rate(self) -> float | None:
        """What the statistics expected of the outcomes that were looked for."""
        if self.shared is not None:
            return self.shared.predicted_hit_rate
        expected = [
            (stats.predicted_hit_rate, stats.num_rounds_after_hit + stats.num_rounds_after_miss)
            for stats in self.stats
            if stats.predicted_hit_rate is not None
        ]
        return _ratio(sum(rate * num for rate, num in expected), sum(num for _, num in expected))

    @property
    def num_rounds(self) -> int:
        return sum(stats.num_rounds for stats in self.stats)

    @property
    def rounds_by_mode(self) -> dict[str, int]:
        """Verifications of each mode that ran."""
        return {
            mode: num
            for mode in MODES
            if (num := sum(stats.rounds_by_mode.get(mode, 0) for stats in self.stats))
        }

    @property
    def sources(self) -> dict[str, SourceCounts]:
        """Verifications by where their drafts came from."""
        return {
            name: SourceCounts(
                sum(each.num_rounds for each in found),
                sum(each.num_drafted for each in found),
                sum(each.num_accepted for each in found),
            )
            for name in ("hit", "jit", "lookup", "none")
            if (found := [stats.sources[name] for stats in self.stats if name in stats.sources])
        }

    @property
    def num_copied(self) -> int:
        """Verifications whose drafts were looked up."""
        return sum(each.num_rounds for name, each in self.sources.items() if name == "lookup")

    def accepted_of(self, *names: str) -> float | None:
        """Accepted tokens of a verification with drafts of these sources; None: there was none."""
        found = [each for name, each in self.sources.items() if name in names]
        accepted = sum(each.num_accepted for each in found)
        return _ratio(accepted, sum(each.num_rounds for each in found))

    @property
    def num_discarded(self) -> int:
        """Tokens of verified blocks behind the ends of the texts."""
        return sum(stats.num_discarded for stats in self.stats)

    @property
    def hidden_s(self) -> float:
        """Seconds of drafting while the target was verifying."""
        if self.shared is not None:
            return self.shared.hidden_s
        return sum(stats.hidden_s for stats in self.stats)

    @property
    def exposed_s(self) -> float:
        """Seconds that the target waited for drafts."""
        if self.shared is not None:
            return self.shared.exposed_s
        return sum(stats.exposed_s for stats in self.stats)

    @property
    def overhead_s(self) -> float:
        """Seconds in which neither engine was waited for."""
        if self.shared is not None:
            return self.shared.overhead_s
        return sum(stats.overhead_s for stats in self.stats)


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


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None
