"""What ``generate`` says about its answers, to people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.cli.report import (
    FORMULAS,
    SHARED_FORMULAS,
    number,
    percent,
    rounds_text,
    settings_record,
    stats_record,
)
from runtime.cli.tally import ModeRun
from runtime.placement import AUTO

if TYPE_CHECKING:
    from runtime.completion import Completion
    from runtime.settings import Settings
    from runtime.text.tokenizer import Tokenizer

ENDINGS = {
    "stop": "ended by the model",
    "length": "ended by --max-tokens",
    "context": "ended by the bundle's max_len",
    "cancelled": "cancelled",
    "grammar": "the form asked for could not be kept",
}
"""In words, by finish reason."""


@dataclass(frozen=True, slots=True)
class Run:
    """The answers to a file of prompts, and how long they took together, prompts included."""

    completions: tuple[Completion, ...]
    settings: Settings
    wall_s: float

    @property
    def tally(self) -> ModeRun:
        last = self.completions[-1]  # whose note is the newest
        return ModeRun(
            last.mode, last.mode, last.note, self.completions, self.settings, self.wall_s
        )

    def as_record(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What ``--json`` prints."""
        tally = self.tally
        return {
            "mode": tally.mode,
            "note": tally.note,
            "num_tokens": tally.num_tokens,
            "wall_s": self.wall_s,
            "tokens_per_second": tally.tokens_per_second,
            "acceptance_length": tally.acceptance_length,
            "hit_rate": tally.hit_rate,
            "rounds_by_mode": tally.rounds_by_mode,
            "settings": settings_record(self.settings),
            "answers": [as_record(each, tokenizer) for each in self.completions],
            "formulas": {
                **FORMULAS,
                **SHARED_FORMULAS,
                "wall_s": "seconds of all answers together",
            },
        }

    def summary(self) -> str:
        """For people, as ``summary`` has it of one answer."""
        tally = self.tally
        parts = [
            f"{len(self.completions)} answers, {tally.num_tokens} tokens in {self.wall_s:.1f} s",
            *_speed(tally.tokens_per_second, tally.acceptance_length, tally.hit_rate),
        ]
        return _told(tally.mode, parts, tally.rounds_by_mode, tally.note)


class InOrder:
    """Shows answers in the order of their prompts, each as soon as those before it are shown."""

    def __init__(self, show: Callable[[int, Completion], None]) -> None:
        self._show = show
        self._waiting: dict[int, Completion] = {}
        self._next = 0

    def __call__(self, index: int, completion: Completion) -> None:
        self._waiting[index] = completion
        while (ready := self._waiting.pop(self._next, None)) is not None:
            self._show(self._next, ready)
            self._next += 1


def as_record(completion: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    """What ``--json`` says about one answer."""
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "mode": completion.mode,
        "note": completion.note,
        "prompt_tokens": completion.prompt_tokens,
        "logprobs": _logprobs(completion, tokenizer),
        **stats_record(completion.stats),
    }


def summary(completion: Completion) -> str:
    """For people: what ran, how fast, how well the drafts were, in one line; a second one says why
    ``auto`` does what it does."""
    stats, why = completion.stats, completion.stop_reason
    ending = ENDINGS[completion.finish_reason] if why is None else f"ended by the stop {why!r}"
    parts = [
        f"{len(completion.token_ids)} tokens, {ending}",
        *_speed(stats.tokens_per_second, stats.acceptance_length, stats.hit_rate),
    ]
    told = _told(completion.mode, parts, stats.rounds_by_mode, completion.note)
    if completion.finish_reason == "grammar" and completion.mode != AUTO:
        told += f"\nnote: {completion.note}"
    return told


def _told(
    mode: str, parts: Sequence[str], rounds_by_mode: Mapping[str, int], note: str | None
) -> str:
    if mode != AUTO:
        return f"{mode}: " + "; ".join(parts)
    # It may have changed its mind since it was loaded.
    return f"{mode}: " + "; ".join([*parts, rounds_text(rounds_by_mode)]) + f"\nnote: {note}"


def _speed(rate: float, acceptance: float | None, hits: float | None) -> list[str]:
    parts = [f"{number(rate, 1)} tokens/s", f"acceptance length {number(acceptance, 2)}"]
    return parts if hits is None else [*parts, f"cache hit rate {percent(hits)}"]


def _logprobs(completion: Completion, tokenizer: Tokenizer) -> list[dict[str, Any]] | None:
    """One object a token; null where they were not asked for."""
    if completion.logprobs is None:
        return None

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {"token_id": token_id, "token": tokenizer.decode([token_id]), "logprob": logprob}

    return [
        {
            **entry(token_id, each.logprob),
            "rank": each.rank,
            "top": [
                entry(int(top_id), float(logprob))
                for top_id, logprob in zip(each.top_ids, each.top_logprobs, strict=True)
            ],
        }
        for token_id, each in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
