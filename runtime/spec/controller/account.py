"""The account in use: what rounds in flight may lose, and what those took that were reported."""

from __future__ import annotations

from collections import deque

from runtime.spec.controller.choices import kind_of
from runtime.spec.controller.credit import LOAN, NUM_ROUNDS, Credit
from runtime.spec.controller.forecasts import Forecasts
from runtime.spec.controller.reading import HOPE, Reading
from runtime.spec.drafter import Drafter
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport

STALL = 4.0
"""A round that takes longer than so many times the longest forecast was held up by the system: no
more of it is charged. A second's pause would keep speculation off for a minute."""
MOST_IN_FLIGHT = 3
"""Rounds that are launched and not yet reported, at most."""


class Account:
    """``credit`` by the forecasts.

    loss_s        what a bad round of the best plan loses
    saving_s      what the next trial needs beside bad rounds
    for_rounds_s  what bad rounds of a trial could lose, when that was asked last
    earned_s      what speculation with the draft has gained, until it is set to 0
    """

    def __init__(self, forecasts: Forecasts, reading: Reading) -> None:
        """``reading`` is told what rounds took longer because the draft read."""
        self.credit = Credit()
        self.loss_s = self.saving_s = self.for_rounds_s = self.earned_s = 0.0
        self._forecasts = forecasts
        self._reading = reading
        self._in_flight: deque[float] = deque(maxlen=MOST_IN_FLIGHT)  # what each may lose

    def launch(self, plan: RoundPlan) -> None:
        """A round by the plan is in flight."""
        self._in_flight.append(0.0 if plan is PLAIN else self._forecasts.most_lost_s(plan))

    def land(self) -> None:
        """The oldest one is not any more."""
        if self._in_flight:
            self._in_flight.popleft()

    def covers(self, loss_s: float) -> bool:
        """Whether so much may be lost beside what the rounds in flight may lose."""
        return self.credit.covers(loss_s + sum(self._in_flight))

    def affords(
        self, num_rounds: int, reading_s: float, num_left: float, *, is_new_text: bool
    ) -> bool:
        """Whether a trial may cost what it may: what its draft has to read could be repaid by the
        tokens that are left, and all has been saved, or reading is little beside what is left.
        Else saving goes on."""
        forecasts = self._forecasts
        left_s = num_left / forecasts.plain.tokens_s
        may_pay, is_lent = reading_s <= HOPE * left_s, reading_s <= LOAN * left_s
        if may_pay and (is_new_text or not self.saving_s):
            # As much as at the text's beginning: it grows with the text, faster than what is saved.
            self.saving_s = reading_s
        self.value()
        self.credit.lend(reading_s if is_lent else 0.0)
        at_hand_s = self.credit.balance_s - sum(self._in_flight)
        self.for_rounds_s = at_hand_s - (0.0 if is_lent else reading_s)
        is_covered = self.for_rounds_s >= num_rounds * forecasts.least_loss_s
        return may_pay and self.credit.debt_s == 0.0 and is_covered

    def value(self) -> None:
        """What the account may hold: bad rounds, one plain step at least (what was saved must not
        be gone because speculation looks safe for a moment), and what is to be read."""
        forecasts = self._forecasts
        self.loss_s = forecasts.most_lost_s(forecasts.best.plan)
        losses_s = [self.loss_s, forecasts.plain.round_s / NUM_ROUNDS]
        if forecasts.lookup is not None:
            losses_s.append(forecasts.most_lost_s(forecasts.lookup))
        self.credit.value(max(losses_s), self.saving_s)

    def settle(self, report: RoundReport) -> None:
        """Charge what the round took beyond plain decoding, or enter what it gained."""
        forecasts, plan = self._forecasts, report.plan
        num_emitted = sum([row.num_emitted for row in report.rows])
        plain_s = num_emitted * forecasts.plain.round_s / forecasts.batch
        self._reading.emitted(num_emitted)
        if plan.mode == "ar":
            self.credit.settle(plain_s, plain_s)
            return
        longest_s, seconds = forecasts.longest_s(plan), report.seconds
        if seconds is None:  # with something else in it: the engines' own time, and the usual gap
            seconds = report.verify_s + report.exposed_s + forecasts.pace.gap_s(kind_of(plan))
        seconds = min(seconds, STALL * longest_s)
        is_reading = False
        if plan.drafter is not Drafter.LOOKUP:
            is_behind = any(row.is_behind for row in report.rows)
            is_reading = is_behind or not report.is_steady
            if is_reading:
                self._reading.lost(seconds - (plain_s if is_behind else longest_s))
            else:
                self._reading.ends()
            self.earned_s += plain_s - seconds
        elif report.is_steady:
            forecasts.copied(num_emitted, seconds)
        self.credit.settle(plain_s, seconds, is_reading=is_reading)
