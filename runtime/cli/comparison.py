"""A finished comparison as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engines.codec import encode
from runtime.cli.prompts import shortened
from runtime.cli.report import (
    BATCH_FORMULA,
    FORMULAS,
    SHARED_FORMULAS,
    SPEEDUP_FORMULA,
    number,
    percent,
    settings_record,
    sources_record,
    stats_record,
    table,
)
from runtime.cli.tally import BASELINE, ModeRun, differing_prompts, first_divergence
from runtime.placement import AUTO

HEADERS = (
    "mode",
    "tokens/s",
    "speed-up",
    "acceptance length",
    "cache hit rate",
    "identical to plain decoding",
)
DRAFT_HEADERS = (
    "drafting",
    "drafter",
    "fallback",
    "hits after a hit",
    "hits after a miss",
    "predicted hits",
    "hidden ms/round",
    "exposed ms/round",
    "looked up",
    "by lookup",
    "by model",
    "discarded tokens",
)
SHOWN = {
    "tokens/s": "tokens_per_second",
    "speed-up": "speedup",
    "acceptance length": "acceptance_length",
    "cache hit rate": "hit_rate",
}
"""What the first table calls a figure, and whose formula it is."""
DRAFT_LEGEND = {
    "hits after a hit": "cache hit rate of the outcomes of rounds that began with a hit",
    "hits after a miss": "cache hit rate of the outcomes of all other rounds",
    "predicted hits": "mean probability of a hit that the fan-out expected of the same outcomes",
    "hidden ms/round": "milliseconds of drafting while the target was verifying / rounds",
    "exposed ms/round": "milliseconds the target waited for drafts / rounds",
    "looked up": "rounds whose drafts were copied from the text / rounds",
    "by lookup": "accepted tokens of such a round, its bonus token left out",
    "by model": "the same of a round with the draft model's tokens",
    "discarded tokens": FORMULAS["num_discarded"],
}


@dataclass(frozen=True)
class Comparison:
    """All modes over the same prompts; the first run is plain decoding.

    ``comparable`` is False where tokens may rightly differ between modes. ``spell`` shows the
    text of one token. ``batch`` prompts were decoded at once.
    """

    runs: tuple[ModeRun, ...]
    comparable: bool
    prompts: tuple[str, ...]
    spell: Callable[[int], str]
    batch: int = 1

    @property
    def formulas(self) -> dict[str, str]:
        shared = {} if self.batch == 1 else SHARED_FORMULAS
        return {**FORMULAS, **shared, "speedup": SPEEDUP_FORMULA}

    @property
    def baseline(self) -> ModeRun:
        return self.runs[0]

    @cached_property
    def differing(self) -> tuple[tuple[int, ...], ...]:
        """For each run the prompts whose tokens differ from plain decoding's."""
        if not self.comparable:
            return tuple(() for _ in self.runs)
        return tuple(tuple(differing_prompts(run, self.baseline)) for run in self.runs)

    @property
    def is_identical(self) -> bool:
        """Nothing that should be equal differs."""
        return not any(self.differing)

    def as_record(self) -> dict[str, Any]:
        """What ``--json`` prints; ``identical`` is null where tokens may rightly differ."""
        return {
            "modes": [self._mode_record(run, bad) for run, bad in self._judged()],
            "batch": self.batch,
            "formulas": self.formulas,
        }

    def as_text(self) -> str:
        """The table and what explains it."""
        rows = [self._row(run, bad) for run, bad in self._judged()]
        drafting = [self._draft_row(run) for run in self.runs if run.ran != BASELINE]
        tables = table(HEADERS, rows) + ("\n" + table(DRAFT_HEADERS, drafting) if drafting else "")
        lines = ["", *(self._describe(run, bad) for run, bad in self._judged() if bad)]
        lines += [f"{run.mode}: {run.note}" for run in self.runs if run.note]
        if not self.comparable:
            lines.append("n/a: under --verify ratio sampled tokens depend on the drafts")
        legend = {name: self.formulas[key] for name, key in SHOWN.items()}
        if self.batch > 1:
            legend["tokens/s"] = BATCH_FORMULA
        if drafting:
            legend |= DRAFT_LEGEND
        lines += [f"{name} = {meaning}" for name, meaning in legend.items()]
        if drafting and self.batch > 1:
            lines.append("(in a batch: the device's milliseconds, and the rounds of every prompt)")
        return tables + "\n".join(lines) + "\n"

    def _judged(self) -> list[tuple[ModeRun, tuple[int, ...]]]:
        return list(zip(self.runs, self.differing, strict=True))

    def _speedup(self, run: ModeRun) -> float:
        plain = self.baseline.tokens_per_second
        return run.tokens_per_second / plain if plain > 0 else float("nan")

    def _row(self, run: ModeRun, differing: Sequence[int]) -> list[str]:
        if not self.comparable and run is not self.baseline:
            verdict = "n/a"
        else:
            verdict = f"no ({len(differing)} of {len(self.prompts)} differ)" if differing else "yes"
        return [
            _spelt(run),
            number(run.tokens_per_second, 1),
            number(self._speedup(run), 2) + "x",
            number(run.acceptance_length, 2),
            percent(run.hit_rate),
            verdict,
        ]

    def _draft_row(self, run: ModeRun) -> list[str]:
        rounds = max(1, run.num_rounds)
        return [
            run.mode,
            run.settings.drafter.value,
            run.settings.fallback.value if run.ran == "ssd" else "-",
            percent(run.hit_rate_after_hit),
            percent(run.hit_rate_after_miss),
            percent(run.predicted_hit_rate),
            number(1e3 * run.hidden_s / rounds, 2),
            number(1e3 * run.exposed_s / rounds, 2),
            percent(run.num_copied / rounds),
            number(run.accepted_of("lookup"), 2),
            number(run.accepted_of("hit", "jit"), 2),
            str(run.num_discarded),
        ]

    def _mode_record(self, run: ModeRun, differing: Sequence[int]) -> dict[str, Any]:
        is_judged = self.comparable or run is self.baseline
        divergence = first_divergence(run, self.baseline) if differing else None
        return {
            "mode": run.mode,
            "ran": run.ran,
            "note": run.note,
            "settings": settings_record(run.settings),
            "tokens_per_second": run.tokens_per_second,
            "median_tokens_per_second": run.median_tokens_per_second,
            "speedup": self._speedup(run),
            "acceptance_length": run.acceptance_length,
            "hit_rate": run.hit_rate,
            "hit_rate_after_hit": run.hit_rate_after_hit,
            "hit_rate_after_miss": run.hit_rate_after_miss,
            "predicted_hit_rate": run.predicted_hit_rate,
            "hidden_s": run.hidden_s,
            "exposed_s": run.exposed_s,
            "overhead_s": run.overhead_s,
            "rounds_by_mode": run.rounds_by_mode,
            "sources": sources_record(run.sources),
            "num_discarded": run.num_discarded,
            "num_rounds": run.num_rounds,
            "identical": not differing if is_judged else None,
            "divergence": encode(divergence),
            "num_tokens": run.num_tokens,
            "decode_s": run.decode_s,
            "wall_s": run.wall_s,
            "per_prompt": [
                {
                    "identical": i not in differing if is_judged else None,
                    "finish_reason": each.finish_reason,
                    "prompt_tokens": each.prompt_tokens,
                    **stats_record(each.stats),
                }
                for i, each in enumerate(run.completions)
            ],
        }

    def _describe(self, run: ModeRun, differing: Sequence[int]) -> str:
        where = first_divergence(run, self.baseline)
        assert where is not None, f"{run.mode}: prompts {differing} differ, but no token does"
        return (
            f"{run.mode} differs first at prompt {where.prompt + 1} "
            f"({shortened(self.prompts[where.prompt])}), token {where.index}: "
            f"ar {self._token(where.expected)}, {run.mode} {self._token(where.found)}"
        )

    def _token(self, token_id: int | None) -> str:
        return "has ended" if token_id is None else f"{token_id} {self.spell(token_id)}"


def _spelt(run: ModeRun) -> str:
    """The mode, and what it was where that was something else or mixed."""
    if run.ran == AUTO and run.num_rounds:
        parts = [f"{mode} {num / run.num_rounds:.0%}" for mode, num in run.rounds_by_mode.items()]
        return f"{run.mode} ({', '.join(parts)})"
    return run.mode if run.ran == run.mode else f"{run.mode} (ran {run.ran})"
