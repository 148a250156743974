"""``--trace FILE``: who worked when, written as a Chrome trace."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from runtime.cli.report import settings_record
from runtime.cli.trace import summarize
from runtime.trace.chrome import require_writable, write_trace

if TYPE_CHECKING:
    from runtime.llm import LLM


def add_trace_option(group: argparse._ArgumentGroup, what: str) -> None:
    """``what`` says which file or files are written."""
    group.add_argument(
        "--trace",
        type=_writable,
        metavar="FILE",
        help=f"{what} a timeline of both engines, with every hit and miss, as a Chrome trace: "
        "https://ui.perfetto.dev shows it, python -m runtime trace sums it up",
    )


def _writable(text: str) -> Path:
    path = Path(text)
    try:
        require_writable(path, "the trace", "--trace")
    except UsageError as error:  # argparse has no other way to hand on a reason
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def save_trace(llm: LLM, path: Path) -> None:
    """Write the timeline of an LLM that was opened with one, and is closed now."""
    if llm.timeline is None:
        raise UsageError(f"{path}: there is no timeline; open the bundle with trace=True")
    figures = summarize(llm.timeline)
    facts = {
        "bundle": str(llm.bundle.path),
        "mode": llm.mode,
        "note": llm.note,
        **settings_record(llm.settings),
        "draft_hidden_ms": figures.draft_hidden_ms,
        "draft_exposed_ms": figures.draft_exposed_ms,
    }
    write_trace(llm.timeline, path, facts)
