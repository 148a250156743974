"""Progress of a long command: a bar on a terminal, plain lines elsewhere, nothing when quiet.

All of it goes to stderr; stdout is for results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engines.console import say

__all__ = ["LINE_EVERY_S", "Report", "lines", "progress", "say"]

LINE_EVERY_S = 10.0

Report = Callable[[str, float, str], None]
"""Called with the stage, the share of it that is done (0..1), and a few words for people."""


@contextmanager
def progress(quiet: bool) -> Iterator[Report]:
    """Give the Report that suits where stderr goes."""
    if quiet:
        yield lambda _stage, _share, _detail: None
    elif sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield lines()


def lines() -> Report:
    """One line when a stage begins, then one every LINE_EVERY_S seconds."""
    last_stage, next_s = "", 0.0

    def report(stage: str, share: float, detail: str) -> None:
        nonlocal last_stage, next_s
        now = time.monotonic()
        if stage == last_stage and now < next_s:
            return
        last_stage, next_s = stage, now + LINE_EVERY_S
        say(f"{stage}: {share:.0%} {detail}".rstrip())

    return report


@contextmanager
def _bar() -> Iterator[Report]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
    except ImportError:
        yield lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}% {task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, share: float, detail: str) -> None:
            if stage not in tasks:
                for earlier in bar.task_ids:
                    bar.update(earlier, completed=1.0)
                tasks[stage] = bar.add_task(stage, total=1.0, detail="")
            bar.update(tasks[stage], completed=min(share, 1.0), detail=detail)

        yield report
