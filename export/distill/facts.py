"""What is known of a trained draft: for its config.json, its card and the command's result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint.api import Checkpoint
from export.checkpoint.spec import ModelSpec
from export.distill.evaluate import Acceptance
from export.distill.measure import Figures
from export.distill.train import Progress
from export.packages import require


@dataclass(frozen=True, slots=True)
class Origin:
    """Which target a draft belongs to."""

    name: str
    fingerprint: str | None
    license: str | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """What it was trained on."""

    names: tuple[str, ...]  # of the files; "self-written"
    num_sequences: int
    num_tokens: int  # prompts included
    num_answer_tokens: int
    num_greedy: int  # sequences whose answer is greedy
    num_refused: int = 0  # left out: they share a run of tokens with the evaluation file


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. ``evaluation`` is empty where no file was given."""

    origin: Origin
    data: Data
    layers: tuple[int, ...]  # of the target, that the draft started from; () where ``start`` is
    target_spec: ModelSpec
    soft: bool
    progress: Progress
    is_early: bool  # training stopped because held-out acceptance no longer rose
    figures: Figures  # on held-out text
    command: str
    start: str | None = None  # the earlier draft that it was trained further from
    start_layers: int = 0  # that this one had
    evaluated_on: str | None = None
    evaluation: Mapping[str, Acceptance] | None = None


def measured(figures: Figures) -> dict[str, object]:
    """Held-out figures as JSON, rounded to what the number of positions carries."""
    return {
        "num_sequences": figures.num_sequences,
        "num_positions": figures.num_positions,
        "greedy_answers": figures.greedy,
        "alpha": round(figures.alpha, 4),
        "rank_shares": [round(share, 4) for share in figures.rank_shares],
        "tokens_per_round": {
            f"K={num_draft}": round(tokens, 3)
            for num_draft, tokens in figures.tokens_per_round.items()
        },
    }


def evaluated(evaluation: Mapping[str, Acceptance] | None) -> dict[str, object]:
    """Figures of an evaluation file as JSON, by category."""
    return {
        name: {
            "num_prompts": each.num_prompts,
            "alpha": round(each.alpha, 4),
            "tokens_per_round": round(each.model, 3),
            "lookup_alone": round(each.lookup, 3),
            "lookup_in_front": round(each.both, 3),
        }
        for name, each in (evaluation or {}).items()
    }


def license_of(checkpoint: Checkpoint) -> str | None:
    """The licence that a checkpoint states (GGUF metadata, or its README's heading), or None."""
    path = checkpoint.path
    if path.is_file():
        gguf = require("gguf", "gguf", "export", "reading a GGUF file", ("GGUFReader",))
        stated = gguf.GGUFReader(path).get_field("general.license")
        return None if stated is None else str(stated.contents())
    return _stated_in(path / "README.md")


def _stated_in(card: Path) -> str | None:
    try:
        lines = card.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    if lines[:1] != ["---"]:
        return None
    for line in lines[1:]:
        key, _, value = line.partition(":")
        if key == "license":
            return value.strip() or None
        if key == "---":
            break
    return None
