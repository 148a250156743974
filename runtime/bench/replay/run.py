"""Running a profile: every mode of every run, measured and predicted, beside what was published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from runtime.bench.figures import Spread, spread
from runtime.bench.replay.host_term import HostTerm, host_term
from runtime.bench.replay.measure import Measured, measure
from runtime.bench.replay.schema import Run
from runtime.spec.cost.laws import Laws
from runtime.spec.cost.prediction import Prediction, predict
from runtime.spec.cost.search import Space, best_of_mode, up_to
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan

FALLBACKS = (Fallback.ZERO, Fallback.JIT)
"""Nothing is looked up in a drawn text."""
BEST = "best"
VIRTUAL_ROUNDS, FEWEST_VIRTUAL = 3000, 400
REAL_ROUNDS, FEWEST_REAL = 1000, 200
"""Rounds of one row that count, and of any batch; more rows meet more outcomes in fewer rounds."""

LawsOf = Callable[[str], Laws]
"""The laws of a run by mode."""
Watch = Callable[[str, int], None]
"""Called with (what is running, rounds done of it), now and then."""
NUM_LOOKS = 20
"""How often while a setting runs."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one setting, measured or predicted; see ``Measured`` for the names."""

    tokens_s: float
    tokens_round: float
    round_s: float
    hit_rate: float | None
    hit_rate_after_hit: float | None
    hit_rate_after_miss: float | None

    @classmethod
    def of(cls, found: Measured | Prediction) -> Figures:
        return cls(*(getattr(found, field.name) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """One setting of a run.

    role       "published" for the settings of the published run, "best" for the planner's choice
    distance   measured tokens/s / predicted - 1
    published  tokens/s that were printed for it
    host_ms    with the real clock: milliseconds that rounds were longer than the same ones on the
               virtual clock: the runtime's own work as far as engines do not hide it, and what
               other processes cost
    host_term  with the real clock: the same as the prediction has it
    luck       with the real clock: tokens/s that the same outcomes give on the virtual clock / what
               the model says without the host term - 1; a part of ``distance`` that shrinks with
               the number of rounds
    """

    role: str
    mode: str
    num_draft: int
    num_branches: int
    fallback: str | None
    num_rounds: int
    measured: Figures
    predicted: Figures
    distance: float
    published: float | None
    host_ms: Spread | None
    host_term: HostTerm | None
    luck: float | None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A run. ``is_met``: whether the best setting reached the goal; None without one."""

    name: str
    law: str
    batch: int
    about: str
    settings: tuple[SettingFigures, ...]
    goal: float | None
    is_met: bool | None


NUM_SETTINGS = 5
"""Settings that ``run_figures`` measures."""


def rounds_of(batch: int, *, is_real: bool) -> int:
    """How many rounds count, unless the user says so."""
    usual, fewest = (REAL_ROUNDS, FEWEST_REAL) if is_real else (VIRTUAL_ROUNDS, FEWEST_VIRTUAL)
    return max(fewest, usual // batch)


def run_figures(
    run: Run, laws_of: LawsOf, num_rounds: int, *, is_real: bool, watch: Watch
) -> RunFigures:
    """Measure every setting of a run for ``num_rounds`` rounds."""
    case = _Case(run, laws_of, num_rounds, is_real, watch)
    settings = [case.figures(plan, "published") for plan in _settings(run)]
    settings.append(case.figures(best_plan(run, laws_of("ssd")), BEST))
    reached = settings[-1].measured.tokens_s
    return RunFigures(
        name=run.name,
        law=run.law,
        batch=run.batch,
        about=run.about,
        settings=tuple(settings),
        goal=run.goal,
        is_met=None if run.goal is None else reached >= run.goal,
    )


def best_plan(run: Run, laws: Laws) -> RoundPlan:
    """The planner's choice of K, W and fallback within what the run allows."""
    whole = up_to(run.max_draft or run.num_draft, run.max_branches or run.num_branches)
    space = Space(whole.drafts, whole.widths, FALLBACKS)
    return best_of_mode(run.times, laws, run.batch, "ssd", space).plan


def _settings(run: Run) -> list[RoundPlan]:
    depth, width = run.num_draft, run.num_branches
    return [
        PLAIN,
        RoundPlan("sd", run.sd_num_draft or depth),
        *(RoundPlan("ssd", depth, width, fallback) for fallback in FALLBACKS),
    ]


@dataclass(frozen=True, slots=True)
class _Case:
    """One run, and how it is measured."""

    run: Run
    laws_of: LawsOf
    num_rounds: int
    is_real: bool
    watch: Watch

    def figures(self, plan: RoundPlan, role: str) -> SettingFigures:
        run, laws, times = self.run, self.laws_of(plan.mode), self.run.times
        host_ms = term = luck = None
        if self.is_real:
            term = host_term(plan, times, laws, run.batch)
            times = term.beside(times)
        found = predict(times, laws, run.batch, plan)
        measured = self._measure(plan, is_real=self.is_real)
        if self.is_real:
            ideal = self._measure(plan, is_real=False)
            host_ms = spread((np.subtract(measured.rounds_s, ideal.rounds_s) * 1e3).tolist())
            luck = ideal.tokens_s / predict(run.times, laws, run.batch, plan).tokens_s - 1
        published = None
        if role != BEST and (plan.mode != "ssd" or plan.fallback is run.fallback):
            published = (run.published or {}).get(plan.mode)
        return SettingFigures(
            role=role,
            mode=plan.mode,
            num_draft=plan.num_draft,
            num_branches=plan.num_branches,
            fallback=plan.fallback.value if plan.mode == "ssd" else None,
            num_rounds=measured.num_rounds,
            measured=Figures.of(measured),
            predicted=Figures.of(found),
            distance=measured.tokens_s / found.tokens_s - 1,
            published=published,
            host_ms=host_ms,
            host_term=term,
            luck=luck,
        )

    def _measure(self, plan: RoundPlan, *, is_real: bool) -> Measured:
        run, what = self.run, describe(plan)
        step = max(1, self.num_rounds // NUM_LOOKS)

        def look(done: int) -> None:
            if done % step == 0 and is_real == self.is_real:
                self.watch(what, done)

        return measure(
            plan,
            run.times,
            self.laws_of(plan.mode),
            run.batch,
            self.num_rounds,
            is_real=is_real,
            on_round=look,
        )


def describe(plan: RoundPlan) -> str:
    """A setting in a few words."""
    if plan.mode == "ar":
        return "ar"
    if plan.mode == "sd":
        return f"sd K={plan.num_draft}"
    return f"ssd K={plan.num_draft} W={plan.num_branches} {plan.fallback.value}"
