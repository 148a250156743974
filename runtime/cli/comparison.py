"""A finished comparison as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engines.codec import encode
from runtime.cli.report import (
    FORMULAS,
    SPEEDUP_FORMULA,
    number,
    percent,
    stats_record,
    table,
)
from runtime.cli.tally import ModeRun, differing_prompts, first_divergence

HEADERS = (
    "mode",
    "tokens/s",
    "speed-up",
    "acceptance length",
    "cache hit rate",
    "identical to plain decoding",
)


@dataclass(frozen=True)
class Comparison:
    """All modes over the same prompts; the first run is plain decoding.

    ``comparable`` is False where tokens may rightly differ between modes. ``spell`` shows the
    text of one token.
    """

    runs: tuple[ModeRun, ...]
    comparable: bool
    prompts: tuple[str, ...]
    spell: Callable[[int], str]

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
            "formulas": {**FORMULAS, "speedup": SPEEDUP_FORMULA},
        }

    def as_text(self) -> str:
        """The table and what explains it."""
        rows = [self._row(run, bad) for run, bad in self._judged()]
        lines = ["", *(self._describe(run, bad) for run, bad in self._judged() if bad)]
        lines += [f"{run.mode}: {run.note}" for run in self.runs if run.note]
        if not self.comparable:
            lines.append("n/a: under --verify ratio sampled tokens depend on the drafts")
        lines += [
            f"tokens/s = {FORMULAS['tokens_per_second']}",
            f"speed-up = {SPEEDUP_FORMULA}",
            f"acceptance length = {FORMULAS['acceptance_length']}",
            f"cache hit rate = {FORMULAS['hit_rate']}",
        ]
        return table(HEADERS, rows) + "\n".join(lines) + "\n"

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
            run.mode if run.ran == run.mode else f"{run.mode} (ran {run.ran})",
            number(run.tokens_per_second, 1),
            number(self._speedup(run), 2) + "x",
            number(run.acceptance_length, 2),
            percent(run.hit_rate),
            verdict,
        ]

    def _mode_record(self, run: ModeRun, differing: Sequence[int]) -> dict[str, Any]:
        is_judged = self.comparable or run is self.baseline
        divergence = first_divergence(run, self.baseline) if differing else None
        return {
            "mode": run.mode,
            "ran": run.ran,
            "note": run.note,
            "tokens_per_second": run.tokens_per_second,
            "median_tokens_per_second": run.median_tokens_per_second,
            "speedup": self._speedup(run),
            "acceptance_length": run.acceptance_length,
            "hit_rate": run.hit_rate,
            "identical": not differing if is_judged else None,
            "divergence": encode(divergence),
            "num_tokens": run.num_tokens,
            "decode_s": run.decode_s,
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


def shortened(prompt: str, width: int = 60) -> str:
    """A prompt as one short line."""
    line = " ".join(prompt.split())
    return line if len(line) <= width else line[: width - 3] + "..."
