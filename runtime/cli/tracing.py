"""``--trace FILE``: who worked when, written as a Chrome trace."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from runtime.cli.report import settings_record
from runtime.cli.trace import summarize
from runtime.trace.chrome import write_trace

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
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return path


def save_trace(llm: LLM, path: Path) -> None:
    """Write the timeline of an LLM that was opened with one, and is closed now."""
    if llm.timeline is None:
        raise UsageError(f"{path}: there is no timeline; open the bundle with trace=True")
    figures = summarize(llm.timeline)
    facts = {
        "bundle": str(llm.bundle.path),
        "mode": llm.mode,
        **settings_record(llm.settings),
        "draft_hidden_ms": figures.draft_hidden_ms,
        "draft_exposed_ms": figures.draft_exposed_ms,
    }
    write_trace(llm.timeline, path, facts)
