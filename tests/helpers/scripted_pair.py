"""A pair whose times and acceptances are scripted, and a clock that is added up: what a policy
makes of it can be computed, with no engine and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from runtime.spec.cost import PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, Policy, RoundPlan, RoundReport, RowReport


@dataclass
class Ride:
    """What happened: seconds, tokens and plan of each round, and what plain decoding takes."""

    plain_s: float  # of one token of a row
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    plans: list[RoundPlan] = field(default_factory=list)

    @property
    def modes(self) -> list[str]:
        return [plan.mode for plan in self.plans]

    def against_plain(self, first: int = 0, last: int | None = None) -> float:
        """Throughput of the rounds [first, last), in that of plain decoding."""
        tokens, seconds = self.tokens[first:last], self.seconds[first:last]
        return sum(tokens) * self.plain_s / sum(seconds)


class ScriptedPair:
    """Rounds of ``batch`` rows. ``accept(round)`` is the probability that a drafted token is
    accepted, ``hit(round)`` that an outcome was prepared. ``times`` are the true ones."""

    def __init__(
        self,
        times: PairTimes,
        accept: Callable[[int], float],
        hit: Callable[[int], float] = lambda _: 0.5,
        *,
        batch: int = 1,
        lag: int = 1,
        rounds_behind: int = 1,
        slow_behind: float = 1.0,
        slow: Callable[[int], float] = lambda _: 1.0,
        seed: int = 0,
    ) -> None:
        """Reports come ``lag`` rounds late. After plain rounds the draft is ``rounds_behind``
        rounds behind, which take ``slow_behind`` times as long. ``slow(round)``: all calls do."""
        self.times = times
        self.accept, self.hit, self.slow = accept, hit, slow
        self.batch, self.lag = batch, lag
        self.rounds_behind, self.slow_behind = rounds_behind, slow_behind
        self.random = np.random.default_rng(seed)
        self.late: deque[RoundReport] = deque()
        self.behind = 0
        self.before: RoundPlan = PLAIN
        self.hits: list[bool | None] = [None] * batch
        self.number = 0

    def run(self, policy: Policy, num_rounds: int) -> Ride:
        plain_s = self.times.target.seconds(self.batch, 1) + self.times.exchange_s
        ride = Ride(plain_s / self.batch)
        for _ in range(num_rounds):
            plan = policy.next_round()
            report = self._round(plan)
            self.late.append(report)
            if len(self.late) > self.lag:
                policy.observe(self.late.popleft())
            assert report.seconds is not None
            ride.seconds.append(report.seconds)
            ride.tokens.append(sum(row.num_emitted for row in report.rows))
            ride.plans.append(plan)
        return ride

    def _round(self, plan: RoundPlan) -> RoundReport:
        if plan.mode != "ar" and self.before.mode == "ar":
            self.behind = self.rounds_behind
        is_behind = plan.mode != "ar" and self.behind > 0
        self.behind -= is_behind
        ran = PLAIN if is_behind else plan
        rows = tuple(self._row(index, ran, is_behind) for index in range(self.batch))
        slow = self.slow(self.number) * (self.slow_behind if is_behind else 1.0)
        verify_s, draft_s, exposed_s = (slow * each for each in self._seconds(ran, rows))
        self.hits = [
            bool(self.random.random() < self.hit(self.number)) if ran.mode == "ssd" else None
            for _ in rows
        ]
        self.before = plan
        self.number += 1
        seconds = verify_s + exposed_s + self.times.exchange_s
        return RoundReport(self.number, rows, plan, seconds, verify_s, draft_s, exposed_s)

    def _row(self, index: int, ran: RoundPlan, is_behind: bool) -> RowReport:
        hit, kind, drafted = self.hits[index], ProposalKind.NONE, 0
        if ran.mode == "sd":
            kind, drafted = ProposalKind.JIT, ran.num_draft
        elif ran.mode == "ssd" and hit:
            kind, drafted = ProposalKind.HIT, ran.num_draft
        elif ran.mode == "ssd" and hit is False and self.before.fallback is Fallback.JIT:
            kind, drafted = ProposalKind.JIT, ran.num_draft
        accepted = 0
        while accepted < drafted and self.random.random() < self.accept(self.number):
            accepted += 1
        known = hit if ran.mode == "ssd" else None
        rank = None
        if known is not None:
            rank = 0 if known else None
        return RowReport(index, kind, drafted, accepted, known, accepted + 1, rank, is_behind)

    def _seconds(self, ran: RoundPlan, rows: tuple[RowReport, ...]) -> tuple[float, float, float]:
        """Verification, drafting, and how much of that was waited for."""
        width, times = 1 + max(row.num_drafted for row in rows), self.times
        if ran.mode != "ssd":
            draft_s = (width - 1) * times.draft.seconds(self.batch, 1)
            return times.target.seconds(self.batch, width), draft_s, draft_s
        verify_s = times.target_beside.seconds(self.batch, width)
        step_s = times.draft_beside.seconds(self.batch, 1)
        branch_s = times.draft_beside.seconds(self.batch, ran.num_branches)
        ahead_s = step_s + ran.num_draft * branch_s
        is_jit = all(row.kind is ProposalKind.JIT for row in rows)
        waited_s = ran.num_draft * step_s if is_jit else 0.0
        return verify_s, ahead_s + waited_s, waited_s + max(0.0, ahead_s - verify_s)
