"""``python -m runtime trace``: figures and a picture of a timeline that --trace wrote."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engines.codec import encode
from engines.errors import UsageError
from runtime.cli.console import emit
from runtime.cli.options import Commands, add_command
from runtime.cli.report import percent, table, to_json
from runtime.trace.chrome import read_trace, write_whole
from runtime.trace.picture import draw
from runtime.trace.timeline import Timeline, overlap

DESCRIPTION = """\
Read a timeline that `generate --trace FILE` or `compare --trace FILE` wrote: what each lane did,
and how much of the drafting the target's verifications hid. --svg draws a stretch of it."""

EXAMPLES = """\
examples:
  python -m runtime trace trace.json
  python -m runtime trace trace.json --svg rounds.svg --from 200 --to 260

The file itself opens in https://ui.perfetto.dev and in chrome://tracing.
"""

DRAFTING = ("prepare", "draft", "adopt")
"""The draft's work that drafts: ahead of an outcome, between two verifications (``sd``), and in
``adopt`` what is drafted just in time."""
VERIFYING = ("verify",)
MEANINGS = {
    "reset": "slots are emptied before the first text",
    "admit": "a text gets its slot",
    "prompt": "a piece of its prompt is read",
    "verify": "the target judges drafts",
    "draft": "drafting between two verifications",
    "prepare": "drafting ahead, while the target verifies",
    "adopt": "the draft takes up what the verification found; after a miss it may draft anew (jit)",
    "follow": "the same between two verifications",
    "commit": "the draft keeps the rows of what was accepted",
    "resume": "the draft drafts again, after rounds without it",
    "catch up": "the draft reads what was accepted without it",
    "move": "a text changes its slot",
    "shift": "rows that a free slot keeps go to another",
    "share": "a text gets the rows of another that begins as it does",
    "retire": "a text has ended and gives its slot back",
    "hit": "the outcome had been prepared",
    "miss": "it had not",
    "plan": "the way of decoding changed",
}
"""What lanes do and marks say, in the order in which a text meets them."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work of one lane; times in milliseconds."""

    lane: str
    label: str
    count: int
    median_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A timeline in figures; ``moments`` counts hits, misses and the like."""

    work: tuple[Work, ...]
    moments: dict[str, int]
    draft_hidden_ms: float
    draft_exposed_ms: float
    draft_hidden_share: float


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(
        commands, "trace", "figures and a picture of a recorded timeline", DESCRIPTION, EXAMPLES
    )
    parser.add_argument("file", type=Path, help="what --trace wrote")
    parser.add_argument("--svg", type=Path, metavar="OUT", help="draw a stretch into this file")
    parser.add_argument(
        "--from",
        dest="start_ms",
        type=float,
        metavar="MS",
        help="where the picture begins, in ms from the first round's start (default 0)",
    )
    parser.add_argument(
        "--to",
        dest="end_ms",
        type=float,
        metavar="MS",
        help="where it ends (default: 60 ms later)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, no more")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if args.svg is None and (args.start_ms is not None or args.end_ms is not None):
        raise UsageError("--from and --to say what --svg draws; name a file with --svg")
    timeline = read_trace(args.file)
    if args.svg is not None:
        if args.svg.exists() and args.svg.samefile(args.file):
            raise UsageError(f"--svg {args.svg} is the trace itself; name another file")
        start_ms = 0.0 if args.start_ms is None else args.start_ms
        end_ms = start_ms + 60 if args.end_ms is None else args.end_ms
        picture = draw(timeline, start_ms / 1e3, end_ms / 1e3)
        write_whole(args.svg, picture, "the picture", "--svg")
    figures = summarize(timeline)
    emit(to_json(encode(figures)) if args.json else as_text(figures))
    return 0


def summarize(timeline: Timeline) -> Summary:
    """Counts and medians for each lane and label, and how much drafting was hidden."""
    times: dict[tuple[str, str], list[float]] = {}
    for span in timeline.spans:
        times.setdefault((span.lane, span.label), []).append((span.end_s - span.start_s) * 1e3)
    drafting = overlap(
        timeline.spans, of="draft", labels=DRAFTING, behind="target", behind_labels=VERIFYING
    )
    return Summary(
        work=tuple(
            Work(lane, label, len(each), median(each), sum(each))
            for (lane, label), each in sorted(times.items())
        ),
        moments=dict(sorted(Counter(moment.label for moment in timeline.moments).items())),
        draft_hidden_ms=drafting.hidden_s * 1e3,
        draft_exposed_ms=drafting.exposed_s * 1e3,
        draft_hidden_share=drafting.hidden_share,
    )


def as_text(figures: Summary) -> str:
    """The figures for people."""
    rows = [
        [work.lane, work.label, str(work.count), f"{work.median_ms:.2f}", f"{work.total_ms:.1f}"]
        for work in figures.work
    ]
    lines = [table(("lane", "work", "times", "median ms", "total ms"), rows).rstrip("\n")]
    if figures.moments:
        lines.append(", ".join(f"{count} x {label}" for label, count in figures.moments.items()))
    lines.append(
        f"drafting while the target verified: {figures.draft_hidden_ms:.1f} ms, while it did not: "
        f"{figures.draft_exposed_ms:.1f} ms ({percent(figures.draft_hidden_share)} hidden)"
    )
    shown = {work.label for work in figures.work} | set(figures.moments)
    lines += ["", *(f"{label} = {why}" for label, why in MEANINGS.items() if label in shown)]
    return "\n".join(lines) + "\n"
