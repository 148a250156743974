"""The figures of a replay, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.bench.figures import Spread
from runtime.bench.replay.host_term import HostTerm
from runtime.bench.replay.kind import FORMULAS
from runtime.bench.replay.run import (
    FEWEST_REAL,
    FEWEST_VIRTUAL,
    RunFigures,
    SettingFigures,
    describe,
)
from runtime.cli.report import number, percent, table
from runtime.spec.fallback import Fallback
from runtime.spec.plan import RoundPlan

CLOSE = 0.03
"""The model and the machine agree within this; else one of them is wrong."""

HEADERS = (
    *("setting", "tokens/s", "predicted", "distance", "published", "tokens/round", "hit rate"),
    *("after hit", "after miss", "round ms"),
)


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """A whole profile. ``clock`` is "virtual" or "real"; ``is_close``: every measurement lies
    within ``limit`` of its prediction."""

    profile: str
    about: str
    clock: str
    limit: float
    is_close: bool
    runs: tuple[RunFigures, ...]

    @property
    def explains(self) -> set[str]:
        """What the tables have."""
        absent = {"virtual clock"} if self.clock == "real" else {"host ms", "host term", "luck"}
        if not self._has_published:
            absent.add("published")
        return set(FORMULAS) - absent

    @property
    def _has_published(self) -> bool:
        return any(each.published is not None for run in self.runs for each in run.settings)

    def as_text(self) -> str:
        """A table for each run, and the verdicts."""
        furthest = max(
            (s for run in self.runs for s in run.settings), key=lambda s: abs(s.distance)
        )
        fewest = min(s.num_rounds for run in self.runs for s in run.settings)
        enough = FEWEST_REAL if self.clock == "real" else FEWEST_VIRTUAL
        verdict = (
            f"measurements are {'within' if self.is_close else 'NOT within'} {self.limit:.0%} of "
            f"the predictions; the furthest is {furthest.distance:+.1%}"
        )
        if fewest < enough:
            verdict += f" (luck decides: {fewest} rounds, {enough} tell more)"
        return "\n".join(
            (
                f"{self.profile}: {self.about}",
                f"{self.clock} clock",
                "",
                *(_run_text(run, is_real=self.clock == "real") for run in self.runs),
                verdict,
            )
        )


def figures_of(
    profile: str, about: str, runs: tuple[RunFigures, ...], *, is_real: bool
) -> ReplayFigures:
    """The figures with their verdict."""
    return ReplayFigures(
        profile=profile,
        about=about,
        clock="real" if is_real else "virtual",
        limit=CLOSE,
        is_close=all(abs(each.distance) <= CLOSE for run in runs for each in run.settings),
        runs=runs,
    )


def _run_text(run: RunFigures, *, is_real: bool) -> str:
    headers = (*HEADERS, "host ms", "host term", "luck") if is_real else HEADERS
    rows = [_row(each)[: len(headers)] for each in run.settings]
    lines = [f"{run.name}" + (f"  ({run.about})" if run.about else ""), table(headers, rows)]
    if run.goal is not None:
        verdict = "met" if run.is_met else "MISSED"
        lines.append(f"goal: {run.goal:g} tokens/s with the best setting: {verdict}\n")
    return "\n".join(lines)


def _row(figures: SettingFigures) -> list[str]:
    measured = figures.measured
    plan = RoundPlan(
        figures.mode,
        figures.num_draft,
        figures.num_branches,
        Fallback(figures.fallback or Fallback.ZERO),
    )
    name = describe(plan)
    return [
        f"best: {name}" if figures.role == "best" else name,
        number(measured.tokens_s, 1),
        number(figures.predicted.tokens_s, 1),
        f"{figures.distance:+.1%}",
        "-" if figures.published is None else f"{figures.published:g}",
        number(measured.tokens_round, 2),
        percent(measured.hit_rate),
        percent(measured.hit_rate_after_hit),
        percent(measured.hit_rate_after_miss),
        number(measured.round_s * 1e3, 2),
        "-" if figures.host_ms is None else _host(figures.host_ms),
        "-" if figures.host_term is None else _term(figures.host_term),
        "-" if figures.luck is None else f"{figures.luck:+.1%}",
    ]


def _host(host_ms: Spread) -> str:
    return f"{host_ms.median:.2f} ({host_ms.low:.2f} - {host_ms.high:.2f})"


def _term(term: HostTerm) -> str:
    """Milliseconds of a round; of one that the draft sets the pace of; of a call that is waited
    for. Those that are there."""
    parts = [term.exchange_s]
    if term.ahead_s or term.again_s:
        parts += [term.exchange_s + term.ahead_s, term.again_s]
    return " / ".join(f"{part * 1e3:.2f}" for part in parts)
