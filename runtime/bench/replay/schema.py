"""What a profile says: laws by which rounds end, and runs over them. ``profile.py`` reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.spec.cost.laws import KindLaw, Laws, paper_ranks
from runtime.spec.cost.times import LONGEST_MS, SHORTEST_MS, ByTokens, CallTimes, Grid, PairTimes
from runtime.spec.fallback import Fallback, ProposalKind

NUM_RANKS = 256
"""Candidates that a law given by an exponent has; other tokens are beyond all of them."""
MAX_BATCH, MAX_DRAFT, MAX_BRANCHES = 256, 64, 1024
MAX_EXPONENT = 100
SUM_TOLERANCE = 0.01
"""What printed histograms may be off 1 by, for their rounding."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One kind of proposal.

    histogram  Pr(k) of k = 0, 1, ... K accepted drafts
    accept     or: how often draft 1, 2, ... is accepted, given all before it were; the last one
               goes on for ever
    exponent   r: F candidates for the bonus token miss with probability F ** -r
    rejected   or: how often candidate 0, 1, ... is the bonus token after a rejection
    bonus      and after all drafts were accepted (null: as ``rejected``)
    """

    histogram: tuple[float, ...] | None = None
    accept: tuple[float, ...] | None = None
    exponent: float | None = None
    rejected: tuple[float, ...] | None = None
    bonus: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.histogram is not None and self.accept is not None:
            raise ValueError("give histogram or accept, not both")
        if self.exponent is not None and self.rejected is not None:
            raise ValueError("give exponent or rejected, not both")
        if self.bonus is not None and self.rejected is None:
            raise ValueError("bonus goes with rejected, which is not there")
        if self.exponent is not None and not 0 < self.exponent < MAX_EXPONENT:
            raise ValueError(f"exponent is {self.exponent}, expected 0 to {MAX_EXPONENT}")
        if self.histogram is not None:
            _require_shares("histogram", self.histogram)
            total = sum(self.histogram)
            if len(self.histogram) < 2 or total < 1 - SUM_TOLERANCE:
                raise ValueError(f"histogram sums to {total:.4f}, expected 1, of 2 or more")
        if self.accept is not None:
            _require_rates("accept", self.accept)
        for name in ("rejected", "bonus"):
            shares = getattr(self, name)
            if shares is not None:
                _require_shares(name, shares)

    def as_law(self, other: KindLaw | None) -> KindLaw:
        """What is not given is ``other``'s. Raises ValueError where there is none."""
        accept, ranks = self._accept(), self._ranks()
        if other is not None:
            accept = other.accept if accept is None else accept
            ranks = ranks or (other.rejected, other.bonus)
        if accept is None or ranks is None:
            raise ValueError("needs histogram or accept, and exponent or rejected")
        return KindLaw(accept, *ranks)

    def _accept(self) -> FloatArray | None:
        if self.histogram is None:
            return None if not self.accept else np.asarray(self.accept)
        reached = np.cumsum(self.histogram[::-1])[::-1]
        return np.asarray(reached[1:] / np.maximum(reached[:-1], np.finfo(np.float64).tiny))

    def _ranks(self) -> tuple[FloatArray, FloatArray] | None:
        if self.exponent is not None:
            ranks = paper_ranks(self.exponent, NUM_RANKS)
            return ranks, ranks
        if self.rejected is None:
            return None
        return _as_law(self.rejected), _as_law(self.bonus or self.rejected)


@dataclass(frozen=True, slots=True)
class LawFigures:
    """One law, by kind of proposal (``profile.py``). ``about`` says where its figures are from."""

    hit: KindFigures
    jit: KindFigures | None = None
    none: KindFigures | None = None
    sd: KindFigures | None = None
    about: str = ""

    def laws(self, mode: str) -> Laws:
        """For a mode; under ``sd`` all drafts are drafted just in time."""
        hit = self.hit.as_law(None)
        jit = hit if self.jit is None else self.jit.as_law(hit)
        none = jit if self.none is None else self.none.as_law(jit)
        if mode == "sd" and self.sd is not None:
            jit = self.sd.as_law(jit)
        return Laws(
            {
                ProposalKind.HIT: hit,
                ProposalKind.JIT: jit,
                ProposalKind.LOOKUP: jit,
                ProposalKind.NONE: none,
            }
        )


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Milliseconds of a call at each pair of rows and tokens; linear in between."""

    tokens: tuple[int, ...]
    ms: tuple[tuple[float, ...], ...]
    rows: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        self.as_grid()
        if min(map(min, self.ms)) < SHORTEST_MS:
            raise ValueError(f"ms has {min(map(min, self.ms)):g}, expected {SHORTEST_MS:g} or more")

    def as_grid(self) -> Grid:
        return Grid(self.rows, self.tokens, tuple(tuple(x / 1e3 for x in line) for line in self.ms))


Time = float | TimeTable


@dataclass(frozen=True, slots=True)
class Run:
    """A published run, or one that is wanted.

    target_ms, draft_ms                one call of either engine
    target_beside_ms, draft_beside_ms  the same in ``ssd``, where it differs
    num_draft, num_branches, fallback  K, W, and what a miss fell back on in ``ssd``
    sd_num_draft                       K in ``sd``, where it differs
    max_draft, max_branches            what the planner may choose (null: K and W): the histogram
                                       may say nothing beyond, or a wider step take longer
    published                          tokens a second by mode, as printed
    goal                               tokens a second that the best setting should reach
    about                              where the figures are from, and what is derived
    """

    name: str
    law: str
    batch: int
    target_ms: Time
    draft_ms: Time
    num_draft: int
    num_branches: int
    target_beside_ms: Time | None = None
    draft_beside_ms: Time | None = None
    fallback: Fallback = Fallback.JIT
    sd_num_draft: int | None = None
    max_draft: int | None = None
    max_branches: int | None = None
    published: dict[str, float] | None = None
    goal: float | None = None
    about: str = ""

    def __post_init__(self) -> None:
        for name, most in (
            ("batch", MAX_BATCH),
            ("num_draft", MAX_DRAFT),
            ("sd_num_draft", MAX_DRAFT),
            ("max_draft", MAX_DRAFT),
            ("num_branches", MAX_BRANCHES),
            ("max_branches", MAX_BRANCHES),
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} is {value}, expected 1 to {most}")
        for name in ("target_ms", "draft_ms", "target_beside_ms", "draft_beside_ms"):
            value = getattr(self, name)
            if isinstance(value, float) and not SHORTEST_MS <= value < LONGEST_MS:
                raise ValueError(
                    f"{name} is {value}, expected {SHORTEST_MS:g} to {LONGEST_MS:g} ms"
                )
        if self.fallback is Fallback.LOOKUP:
            raise ValueError("fallback is lookup, but a drawn text has nothing to look up")
        if unknown := set(self.published or ()) - {"ar", "sd", "ssd"}:
            raise ValueError(f"published has {min(unknown)!r}, expected ar, sd or ssd")
        rates = [*(self.published or {}).values(), *([] if self.goal is None else [self.goal])]
        if not all(0 < rate < math.inf for rate in rates):
            raise ValueError(f"published and goal are {rates}, expected tokens/s above 0")
        if not self.name.isprintable() or not self.name.strip():
            raise ValueError(f"name is {self.name!r}, expected one printable line")

    @property
    def times(self) -> PairTimes:
        target, draft = _curve(self.target_ms), _curve(self.draft_ms)
        return PairTimes(
            target,
            target if self.target_beside_ms is None else _curve(self.target_beside_ms),
            draft,
            draft if self.draft_beside_ms is None else _curve(self.draft_beside_ms),
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """Laws by name, and runs that follow them."""

    about: str
    laws: dict[str, LawFigures]
    runs: tuple[Run, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("there is no run")
        for run in self.runs:
            if run.law not in self.laws:
                raise ValueError(f"run {run.name!r} follows law {run.law!r}, which is not there")
        for name, law in self.laws.items():
            try:
                law.laws("sd")
            except ValueError as error:
                raise ValueError(f"law {name!r} {error}") from None


def _as_law(shares: Sequence[float]) -> FloatArray:
    """What SUM_TOLERANCE allows beyond 1 is rounding, not probability."""
    return np.asarray(shares) / max(1.0, sum(shares))


def _curve(time: Time) -> CallTimes:
    return ByTokens((1,), (time / 1e3,)) if isinstance(time, float) else time.as_grid()


def _require_rates(name: str, values: Sequence[float]) -> None:
    if not values or not all(0 <= value <= 1 for value in values):  # NaN is no rate either
        raise ValueError(f"{name} is {list(values)}, expected numbers from 0 to 1")


def _require_shares(name: str, values: Sequence[float]) -> None:
    _require_rates(name, values)
    if sum(values) > 1 + SUM_TOLERANCE:
        raise ValueError(f"{name} sums to {sum(values):.4f}, expected at most 1")
