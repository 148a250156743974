"""How figures are shown: formulas, tables, JSON."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from runtime.placement import AUTO

if TYPE_CHECKING:
    from runtime.llm import Stats
    from runtime.settings import Settings
    from runtime.stats import SourceCounts

FORMULAS = {
    "tokens_per_second": "generated tokens / seconds of decoding, reading the prompt left out",
    "acceptance_length": "tokens emitted / rounds, each round's bonus token included",
    "hit_rate": "outcomes that had been prepared / outcomes looked up (ssd only)",
    "hidden_s": "seconds of drafting while the target was verifying",
    "exposed_s": "seconds the target waited for drafts",
    "overhead_s": "decode_s - verify_s - exposed_s: seconds in which neither engine was waited for",
    "sources": "verifications by where their drafts came from: prepared ahead (hit), drafted when "
    "they were needed (jit), copied from the text (lookup), nowhere (none)",
    "rounds_by_mode": "verifications in each mode; auto changes it as it runs",
    "num_discarded": "tokens of verified blocks behind the end of the text, those of a stop "
    "string included",
}
BATCH_FORMULA = "generated tokens / seconds of all prompts together, reading them included"
"""Of tokens_per_second, where several prompts are decoded at once."""
_OF_ONE = "; of one prompt: "
SHARED_FORMULAS = {
    "tokens_per_second": BATCH_FORMULA + _OF_ONE + FORMULAS["tokens_per_second"],
    **{
        name: f"{FORMULAS[name]}, each second once however many prompts ran{_OF_ONE}"
        "all of them while it ran, shared with the others and not to be summed"
        for name in ("hidden_s", "exposed_s", "overhead_s")
    },
    **{
        name: f"seconds the {side} worked for all prompts while this one ran, not to be summed"
        for name, side in (("verify_s", "target"), ("draft_s", "draft"))
    },
    "decode_s": "seconds in which any prompt was being decoded" + _OF_ONE + "its own, which "
    "overlap with the others' and are not to be summed",
}
"""In the place of ``FORMULAS``, where several prompts are decoded at once."""
SPEEDUP_FORMULA = "tokens/s / tokens/s of plain decoding (ar)"


PREPARED = (
    *("num_hits", "num_hits_after_hit", "num_rounds_after_hit", "num_hits_after_miss"),
    *("num_rounds_after_miss", "num_jit", "num_lookup", "hit_rate", "predicted_hit_rate"),
)
"""Figures of ``ssd`` only."""


def stats_record(stats: Stats) -> dict[str, object]:
    """What ``--json`` says about one answer; null where nothing is prepared to be hit."""
    record: dict[str, object] = {
        "num_tokens": stats.num_tokens,
        "num_rounds": stats.num_rounds,
        "num_emitted": stats.num_emitted,
        "num_drafted": stats.num_drafted,
        "num_accepted": stats.num_accepted,
        "num_discarded": stats.num_discarded,
        "num_hits": stats.num_hits,
        "num_hits_after_hit": stats.num_hits_after_hit,
        "num_rounds_after_hit": stats.num_rounds_after_hit,
        "num_hits_after_miss": stats.num_hits_after_miss,
        "num_rounds_after_miss": stats.num_rounds_after_miss,
        "num_jit": stats.num_jit,
        "num_lookup": stats.num_lookup,
        "tokens_per_second": stats.tokens_per_second,
        "acceptance_length": stats.acceptance_length,
        "hit_rate": stats.hit_rate,
        "predicted_hit_rate": stats.predicted_hit_rate,
        "histogram": stats.histogram,
        "num_cached": stats.num_cached,
        "prompt_s": stats.prompt_s,
        "decode_s": stats.decode_s,
        "verify_s": stats.verify_s,
        "draft_s": stats.draft_s,
        "hidden_s": stats.hidden_s,
        "exposed_s": stats.exposed_s,
        "overhead_s": stats.overhead_s,
        "rounds_by_mode": dict(stats.rounds_by_mode),
        "sources": sources_record(stats.sources),
    }
    return record if stats.num_hits is not None else record | dict.fromkeys(PREPARED)


def sources_record(sources: Mapping[str, SourceCounts]) -> dict[str, object]:
    """Verifications by where their drafts came from: how many, tokens drafted and accepted."""
    return {
        name: {
            "num_rounds": each.num_rounds,
            "num_drafted": each.num_drafted,
            "num_accepted": each.num_accepted,
        }
        for name, each in sources.items()
    }


def settings_record(settings: Settings) -> dict[str, object]:
    """What ``--json`` says about how it was run; null is what has no effect. In mode ``auto`` K and
    W are the most that rounds may have, and the fallback is chosen as it runs."""
    mode = settings.placement.mode
    prepares, drafts = mode in ("ssd", AUTO), mode != "ar"
    return {
        "device": str(settings.placement.devices),
        "verify": settings.verify,
        "drafter": settings.drafter.value if drafts else None,
        "num_draft": settings.num_draft if drafts else None,
        "num_branches": settings.num_branches if prepares else None,
        "max_batch": settings.max_batch,
        "fallback": settings.fallback.value if mode == "ssd" else None,
        "saguaro": settings.saguaro if prepares else None,
    }


def rounds_text(rounds_by_mode: Mapping[str, int]) -> str:
    """``rounds ar 12, sd 40``, in the order of the modes."""
    return "rounds " + (", ".join(f"{mode} {num}" for mode, num in rounds_by_mode.items()) or "0")


def to_json(value: object) -> str:
    """One line of JSON text; NaN and infinity, which JSON does not have, become null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = True) -> str:
    """Columns after the first are right aligned for ``figures``; ruled on a terminal with room."""
    ruled = None
    if sys.stdout.isatty():
        with suppress(ImportError):
            ruled = _ruled(headers, rows, figures)
    return ruled or _aligned([headers, *rows], figures)


def percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{share:.0%}"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _aligned(lines: Sequence[Sequence[str]], figures: bool) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ""
    for line in lines:
        cells = [
            cell.rjust(width) if figures and i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text += "  ".join(cells).rstrip() + "\n"
    return text


def _ruled(headers: Sequence[str], rows: Sequence[Sequence[str]], figures: bool) -> str | None:
    """None where the terminal is too narrow: figures would be cut away."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = Console().width
    words = [header.split() for header in headers]  # headers may be wrapped, figures may not
    columns = [[*head, *cells] for head, *cells in zip(words, *rows, strict=True)]
    if sum(max(map(len, column)) + 3 for column in columns) + 1 > width:
        return None
    grid = Table()
    for i, header in enumerate(headers):
        grid.add_column(Text(header), justify="right" if figures and i else "left")
    for row in rows:
        grid.add_row(*map(Text, row))
    paper = io.StringIO()
    Console(file=paper, force_terminal=True, width=width).print(grid)
    return paper.getvalue()
