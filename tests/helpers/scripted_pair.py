"""A pair whose times and acceptances are scripted, and a clock that is added up: what a policy
makes of it can be computed, with no engine and no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from runtime.spec.cost import PairTimes
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, Looked, Outlook, Policy, RoundPlan, RoundReport, RowReport


@dataclass
class Ride:
    """What happened: seconds, tokens and plan of each round, and what plain decoding takes."""

    plain_s: float  # of one token of a row
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    plans: list[RoundPlan] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)  # of plain decoding, in ``plain_s``

    @property
    def modes(self) -> list[str]:
        return [plan.mode for plan in self.plans]

    def against_plain(self, first: int = 0, last: int | None = None) -> float:
        """Throughput of the rounds [first, last), in that of plain decoding."""
        took = zip(self.tokens[first:last], self.weights[first:last], strict=True)
        plain_s = self.plain_s * sum(num * weight for num, weight in took)
        return plain_s / sum(self.seconds[first:last])


@dataclass
class Text:
    """``num_left`` tokens are still to be emitted; the draft lacks ``num_lacking`` of the text."""

    num_left: int
    num_lacking: int


class ScriptedPair:
    """Rounds of ``batch`` rows. ``accept(round)`` is the probability that a drafted token is
    accepted, ``hit(round)`` that an outcome was prepared, ``match(round)`` how many tokens match
    where a lookup is made, of whose copies a share ``copied`` is right. ``times`` are the true
    ones."""

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
        span: Callable[[int], tuple[int, float]] = lambda _: (0, 1.0),
        match: Callable[[int], int] | None = None,
        copied: float = 0.0,
        texts: Iterable[tuple[int, int]] = (),
        seed: int = 0,
    ) -> None:
        """Reports come ``lag`` rounds late. After plain rounds the draft is ``rounds_behind``
        rounds behind, which take ``slow_behind`` times as long; where ``texts`` are given, pairs of
        (tokens of the prompt, tokens to emit), it is a round for each 64 tokens behind. ``slow``:
        all calls of that round are. ``span(round)``: the rows that calls are given, and how much
        longer these make calls and plain decoding. Without ``match`` nothing is looked up."""
        self.times = times
        self.accept, self.hit, self.slow = accept, hit, slow
        self.match, self.copied = match, copied
        self.batch, self.lag = batch, lag
        self.span = span
        self.rounds_behind, self.slow_behind = rounds_behind, slow_behind
        self.random = np.random.default_rng(seed)
        self.late: deque[RoundReport] = deque()
        self.behind = 0
        self.before: RoundPlan = PLAIN
        self.hits: list[bool | None] = [None] * batch
        self.number = 0
        self.is_timed = True
        self.weight = 1.0
        self.num_read = 0  # tokens that the draft has read, prompts and texts
        self._texts = iter(texts)
        self._rows: list[Text] | None = None

    def run(self, policy: Policy, num_rounds: int) -> Ride:
        plain_s = self.times.target.seconds(self.batch, 1) + self.times.exchange_s
        ride = Ride(plain_s / self.batch)
        for _ in range(num_rounds):
            self._begin_texts(policy)
            plan = policy.next_round(partial(self._look, self._is_drafting(self.before)))
            report = self._round(plan)
            self.late.append(report)
            if len(self.late) > self.lag:
                policy.observe(self.late.popleft())
            ride.seconds.append(self.seconds)
            ride.tokens.append(sum(row.num_emitted for row in report.rows))
            ride.plans.append(plan)
            ride.weights.append(self.weight)
        return ride

    def _begin_texts(self, policy: Policy) -> None:
        """Where a text has ended all are replaced: the batch begins anew."""
        if self._rows is not None and all(text.num_left > 0 for text in self._rows):
            return
        found = next(self._texts, None)
        if found is None:
            return
        num_prompt, num_left = found
        self._rows = [Text(num_left, num_prompt) for _ in range(self.batch)]
        is_fed = [policy.joins(num_prompt, num_left) for _ in self._rows]
        if all(is_fed) and self._is_drafting(self.before):
            self.num_read += num_prompt * self.batch
            for text in self._rows:
                text.num_lacking = 0
        else:
            self.before = PLAIN
        self.hits = [None] * self.batch
        self.is_timed = False

    def _look(self, is_drafting: bool) -> Outlook:
        if self._rows is None:
            return Outlook(10**6, 0 if is_drafting else 64 * self.rounds_behind)
        return Outlook(
            sum(text.num_left for text in self._rows),
            0 if is_drafting else sum(text.num_lacking for text in self._rows),
        )

    @staticmethod
    def _is_drafting(plan: RoundPlan) -> bool:
        return plan.mode != "ar" and plan.drafter is not Drafter.LOOKUP

    def _round(self, plan: RoundPlan) -> RoundReport:
        begins = self._is_drafting(plan) and not self._is_drafting(self.before)
        if begins:
            self.behind = self.rounds_behind
            if self._rows is not None:
                lacking = sum(text.num_lacking for text in self._rows)
                self.num_read += lacking
                self.behind = -(-lacking // 64)
        is_behind = self._is_drafting(plan) and self.behind > 0
        self.behind -= is_behind
        ran = PLAIN if is_behind else plan
        rows = tuple(self._row(index, ran, is_behind) for index in range(self.batch))
        span, self.weight = self.span(self.number)
        slow = self.weight * self.slow(self.number) * (self.slow_behind if is_behind else 1.0)
        verify_s, draft_s, exposed_s = (slow * each for each in self._seconds(ran, rows))
        self.hits = [
            bool(self.random.random() < self.hit(self.number)) if ran.mode == "ssd" else None
            for _ in rows
        ]
        is_steady = self.is_timed and not (begins or is_behind)
        self.before = plan
        self.number += 1
        self.seconds = verify_s + exposed_s + self.times.exchange_s
        seconds = self.seconds if self.is_timed else None
        self.is_timed = True
        return RoundReport(
            self.number, rows, plan, seconds, verify_s, draft_s, exposed_s, is_steady, span
        )

    def _row(self, index: int, ran: RoundPlan, is_behind: bool) -> RowReport:
        hit, kind, drafted = self.hits[index], ProposalKind.NONE, 0
        looked = self._looked(ran.num_draft or 4)
        if ran.drafter is not Drafter.MODEL and looked and looked[0].num_matched > 3:
            kind, drafted = ProposalKind.LOOKUP, looked[0].num_proposed
        elif ran.drafter is Drafter.LOOKUP:
            pass
        elif ran.mode == "sd":
            kind, drafted = ProposalKind.JIT, ran.num_draft
        elif ran.mode == "ssd" and hit:
            kind, drafted = ProposalKind.HIT, ran.num_draft
        elif ran.mode == "ssd" and hit is False and self.before.fallback is Fallback.JIT:
            kind, drafted = ProposalKind.JIT, ran.num_draft
        accepted = 0
        if kind is ProposalKind.LOOKUP:
            accepted = looked[0].num_confirmed
        else:
            while accepted < drafted and self.random.random() < self.accept(self.number):
                accepted += 1
        known = hit if ran.mode == "ssd" else None
        rank = None
        if known is not None:
            rank = 0 if known else None
        emitted = accepted + 1
        if self._rows is not None:
            text = self._rows[index]
            emitted = min(emitted, max(1, text.num_left))
            text.num_left -= emitted
            text.num_lacking = 0 if self._is_drafting(ran) else text.num_lacking + emitted
        return RowReport(
            index, kind, drafted, accepted, known, emitted, rank, is_behind, looked=looked
        )

    def _looked(self, num_draft: int) -> tuple[Looked, ...]:
        """Each round settles one lookup, whatever it emits: texts of one law need no more."""
        if self.match is None:
            return ()
        length = self.match(self.number)
        if not length:
            return (Looked(0, 0, 0),)
        confirmed = 0
        while confirmed < num_draft and self.random.random() < self.copied:
            confirmed += 1
        return (Looked(length, num_draft, confirmed),)

    def _seconds(self, ran: RoundPlan, rows: tuple[RowReport, ...]) -> tuple[float, float, float]:
        """Verification, drafting, and how much of that was waited for."""
        width, times = 1 + max(row.num_drafted for row in rows), self.times
        if ran.mode != "ssd":
            draws = any(row.kind is ProposalKind.JIT for row in rows)
            draft_s = draws * (width - 1) * times.draft.seconds(self.batch, 1)
            return times.target.seconds(self.batch, width), draft_s, draft_s
        verify_s = times.target_beside.seconds(self.batch, width)
        step_s = times.draft_beside.seconds(self.batch, 1)
        branch_s = times.draft_beside.seconds(self.batch, ran.num_branches)
        ahead_s = step_s + ran.num_draft * branch_s
        is_jit = all(row.kind is ProposalKind.JIT for row in rows)
        waited_s = ran.num_draft * step_s if is_jit else 0.0
        return verify_s, ahead_s + waited_s, waited_s + max(0.0, ahead_s - verify_s)
