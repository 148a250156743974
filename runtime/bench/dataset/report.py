"""A data set's figures for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, cast

from engines.codec import encode
from engines.errors import escaped
from runtime.bench.dataset.facts import BundleFacts
from runtime.bench.dataset.figures import CategoryFigures, ContestantFigures
from runtime.bench.dataset.items import OVERALL
from runtime.bench.dataset.kind import FORMULAS, OF_DRAFTS, OF_PEERS
from runtime.bench.dataset.record import vllm_names
from runtime.bench.dataset.tables import (
    DRAFTS,
    LATENCY,
    SPEED,
    drafts,
    identity_text,
    interval_text,
)
from runtime.cli.report import number, table


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One answer: which line of the file, by whom, in which pass, and what it took. ``text`` is
    the beginning of the prompt."""

    line: int
    category: str
    text: str
    contestant: str
    number_of_pass: int
    num_prompt_tokens: int
    num_tokens: int
    num_rounds: int
    decode_s: float
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class DatasetFigures:
    """All of it. ``lines_left_out``: prompts too long for the bundle. ``descriptions`` by
    contestant: what ran; ``notes``: why one did not run as its name says. ``num_done`` of the
    ``num_planned`` answers were given; figures are of the prompts that all contestants answered.
    ``failure``: who could not go on, and why, where that ended the run.
    """

    dataset: str
    bundle: BundleFacts
    max_tokens: int
    temperature: float
    repeats: int
    num_planned: int
    num_done: int
    failure: str | None
    lines_left_out: tuple[int, ...]
    descriptions: dict[str, str]
    notes: dict[str, str]
    categories: tuple[CategoryFigures, ...]
    prompts: tuple[PromptRecord, ...]

    @property
    def total(self) -> CategoryFigures:
        """All prompts together."""
        return self.categories[-1]

    @property
    def parts(self) -> tuple[CategoryFigures, ...]:
        """The categories without their sum."""
        return tuple(each for each in self.categories if each.name != OVERALL)

    @property
    def is_identical(self) -> bool:
        """Every contestant that must gave the baseline's tokens to every prompt."""
        return not any(
            each.num_differing
            for category in self.categories
            for each in category.contestants
            if not each.is_peer
        )

    @property
    def is_interrupted(self) -> bool:
        """Ctrl-C came before the last answer."""
        return self.failure is None and self.num_done < self.num_planned

    @property
    def explains(self) -> Set[str]:
        """See ``runtime.bench.kind.Explained``."""
        names = set(FORMULAS)
        if any(map(drafts, self.total.contestants)):
            names |= set(OF_DRAFTS)
        if any(each.is_peer for each in self.total.contestants):
            names |= set(OF_PEERS)
        return names

    def as_text(self) -> str:
        """Three tables and the verdicts."""
        lines = [
            self.bundle.as_text(),
            *self.summary(),
            "",
            *(
                table(columns.headers, rows)
                for columns in (SPEED, DRAFTS, LATENCY)
                if (rows := columns.rows(self.categories))
            ),
            *(f"{name}: {what}" for name, what in self.descriptions.items()),
            *(f"{name}: {note}" for name, note in self.notes.items()),
            *self.verdicts(),
        ]
        return "\n".join(lines)

    def as_record(self) -> Mapping[str, object]:
        """All fields, and for each contestant of a category ``vllm``: its figures under the names
        of vLLM's benchmark."""
        record = cast("dict[str, Any]", encode(self))
        for category, written in zip(self.categories, record["categories"], strict=True):
            for each, entry in zip(category.contestants, written["contestants"], strict=True):
                entry["vllm"] = vllm_names(each, category.num_prompts)
        record["is_interrupted"] = self.is_interrupted
        return record

    def as_html(self, header: Mapping[str, str], formulas: Mapping[str, str]) -> str:
        """See ``runtime.bench.kind.Pictured``."""
        from runtime.bench.report.dataset import dataset_page

        return dataset_page(self, header, formulas)

    def summary(self) -> Iterator[str]:
        """What was asked, and what of it was measured."""
        yield (
            f"{escaped(self.dataset)}: prompts: {self.total.num_prompts}, "
            f"categories: {len(self.parts)}; at most {self.max_tokens} tokens each, "
            f"temperature {self.temperature:g}, repeats: {self.repeats}"
        )
        if self.num_done < self.num_planned:
            cause = "interrupted" if self.failure is None else f"{self.failure};"
            yield (
                f"{cause} after {self.num_done} of {self.num_planned} answers: figures are of "
                "the prompts that all contestants had answered"
            )
        if self.lines_left_out:
            lines = ", ".join(map(str, self.lines_left_out))
            yield f"left out, too long for the bundle: lines {lines}"

    def verdicts(self) -> Iterator[str]:
        """Whose tokens are the baseline's, and where each gains least, or loses most."""
        for place, each in enumerate(self.total.contestants):
            yield from _identity(each, self.total.num_prompts, is_baseline=not place)
        for place, each in enumerate(self.total.contestants[1:], start=1):
            known = [
                (found.ratio, interval_text(found.ratio_interval), part.name)
                for part in self.parts
                if (found := part.contestants[place]).ratio is not None
            ]
            if known:
                ratio, interval, name = min(known)
                yield f"{each.name}: lowest speed-up {number(ratio, 3)} ({interval}), in {name}"


def _identity(figures: ContestantFigures, num_prompts: int, *, is_baseline: bool) -> Iterator[str]:
    if figures.is_peer:
        yield (
            f"{figures.name}: the same tokens on {identity_text(figures, num_prompts)} prompts "
            "(other weights or rounding may differ)"
        )
    elif is_baseline:
        if figures.num_differing:
            yield f"{figures.name}: differs from itself on {figures.num_differing} prompts"
    elif figures.num_differing:
        yield f"{figures.name}: tokens differ on {figures.num_differing} prompts"
    else:
        yield f"{figures.name}: identical tokens on every prompt"
