"""``bench --replay``: from the command line's arguments to figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from engines.errors import UsageError
from runtime.bench.kind import Show, Tick
from runtime.bench.replay.profile import read_profile
from runtime.bench.replay.report import ReplayFigures, figures_of
from runtime.bench.replay.run import NUM_SETTINGS, LawsOf, rounds_of, run_figures
from runtime.bench.replay.schema import MAX_BATCH, Run
from runtime.spec.cost.laws import laws_of_log
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import read_log

LOG_SUFFIX = ".jsonl"
LOG_ONLY = ("target_ms", "draft_ms", "batch", "num_draft", "branches")
"""Options that say what a profile says itself."""


def measure(args: argparse.Namespace, show: Show) -> ReplayFigures:
    """Replay ``args.replay``: a shipped profile, a profile or an outcome log."""
    is_real = args.clock == "real"
    about, cases = _from_log(args) if args.replay.endswith(LOG_SUFFIX) else _from_profile(args)
    runs = []
    for run, laws_of in cases:
        rounds: int = args.rounds or rounds_of(run.batch, is_real=is_real)
        with show(run.name, NUM_SETTINGS * rounds) as tick:
            watch = _Watch(tick, rounds)
            runs.append(run_figures(run, laws_of, rounds, is_real=is_real, watch=watch))
    return figures_of(args.replay, about, tuple(runs), is_real=is_real)


class _Watch:
    """Rounds of one setting after another, as progress of the run."""

    def __init__(self, tick: Tick, rounds_each: int) -> None:
        self._tick = tick
        self._rounds_each = rounds_each
        self._before = self._last = 0

    def __call__(self, what: str, done: int) -> None:
        if done < self._last:  # the next setting
            self._before += self._rounds_each
        self._last = done
        self._tick(self._before + done, what)


def _from_profile(args: argparse.Namespace) -> tuple[str, list[tuple[Run, LawsOf]]]:
    if given := [name for name in LOG_ONLY if getattr(args, name) is not None]:
        option = "--" + given[0].replace("_", "-")
        raise UsageError(f"{option} goes with an outcome log; a profile says that itself")
    profile = read_profile(args.replay)
    wanted = [run for run in profile.runs if args.run is None or args.run in run.name]
    if not wanted:
        names = "; ".join(run.name for run in profile.runs)
        raise UsageError(
            f"no run of {args.replay} has {args.run!r} in its name (there are: {names})"
        )
    return profile.about, [(run, profile.laws[run.law].laws) for run in wanted]


def _from_log(args: argparse.Namespace) -> tuple[str, list[tuple[Run, LawsOf]]]:
    """The log's law under the times that the options name."""
    for name in ("target_ms", "draft_ms"):
        if getattr(args, name) is None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"an outcome log has no times: say them with {option} MS")
    if args.run is not None:
        raise UsageError("--run chooses among the runs of a profile; an outcome log is one run")
    path = Path(args.replay)
    log = read_log(path)
    header, laws = log.header, laws_of_log(log)
    width = args.branches or header.num_branches or header.num_ranks or header.num_draft
    batch = args.batch or 1
    if batch > MAX_BATCH:
        raise UsageError(f"--batch is {batch}, expected at most {MAX_BATCH}")
    try:
        run = Run(
            name=f"{path.name}, B={batch}",
            law=path.name,
            batch=batch,
            target_ms=args.target_ms,
            draft_ms=args.draft_ms,
            num_draft=args.num_draft or header.num_draft,
            num_branches=width,
        )
    except ValueError as error:
        raise UsageError(
            f"--replay {path}: {error} (--num-draft and --branches stand before the log's own)"
        ) from None
    about = f"{len(log.rounds)} rounds of {header.bundle or 'a log'}, K = {header.num_draft}"
    if any(found.kind is ProposalKind.LOOKUP for found in log.rounds):
        about += "; those that copied from the text are left out"
    return about, [(run, lambda _mode: laws)]
