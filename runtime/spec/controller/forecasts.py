"""What plans are expected to yield and may lose, by the laws and times of the last rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from runtime.spec.controller.choices import (
    Choices,
    floor_of,
    is_near,
    kind_of,
    longest_round_s,
    may_wait,
)
from runtime.spec.controller.copies import Copies, Realised
from runtime.spec.controller.laws import RecentLaws
from runtime.spec.controller.pace import Pace
from runtime.spec.cost import Laws, PairTimes, predict
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import ProposalKind
from runtime.spec.lookup import DRAFTING
from runtime.spec.plan import PLAIN, RoundPlan

ENTER, SWITCH = 1.05, 1.03
"""How much faster speculation must look to be taken up, and another plan to take its place. Times
scatter by some percent: what gains less than that may as well lose it. Going back to plain decoding
needs no margin: it is what the bound is measured against."""


class Forecast(NamedTuple):
    """Of rounds by ``plan``: tokens a second of all rows together, and seconds of a round."""

    plan: RoundPlan
    tokens_s: float
    round_s: float


class Forecasts:
    """Three of them are kept up to date.

    plain  decoding without speculation
    rest   what is done while the draft engine rests: plain, or lookups where they look faster
    best   the plan with the draft engine that is followed, or would be tried next
    """

    def __init__(self, times: PairTimes, prior: Laws, choices: Choices, batch: int) -> None:
        self.batch = max(1, batch)
        self.pace = Pace(times)
        self.laws = RecentLaws(prior, choices.num_draft)
        self.copies = Copies()
        self._realised = Realised()
        self._times, self._choices = times, choices
        self._set_floor()
        self._lookups_s = 1.0  # tokens a second that they are forecast to yield
        self.may_copy = any(each is not Drafter.MODEL for each in choices.drafters)
        self.rest = self.plain = self.best = Forecast(PLAIN, 1.0, 1.0)
        self._cheapest = PLAIN
        self.scan()

    def set_batch(self, batch: int) -> None:
        """So many texts there are from now on. ``look`` has to follow."""
        self.batch = batch
        floor = self._set_floor()
        best, cheapest = (
            plan if plan.drafter is Drafter.MODEL else replace(plan, floor=floor)
            for plan in (self.best.plan, self._cheapest)
        )
        self.best, self._cheapest = self.best._replace(plan=best), cheapest

    def _set_floor(self) -> float:
        """One text alone is given copies that many together could not pay for."""
        floor = floor_of(self._times, self.batch, self._choices.num_draft)
        self.plans, self.lookup = self._choices.plans(floor), self._choices.lookup(floor)
        return floor

    def scan(self, most_lost_s: float = inf) -> None:
        """Put all plans into the model. The best is the fastest of those of which no round loses
        more than ``most_lost_s``; where nothing looks like a gain, the one that loses least."""
        self.look_at_rest()
        laws = self.laws.now()
        found = [self._of(plan, laws) for plan in self.plans] or [self.plain]
        losses_s = {each.plan: self.most_lost_s(each.plan) for each in found}
        self._cheapest = min(losses_s, key=losses_s.__getitem__)
        cheap = [each for each in found if losses_s[each.plan] <= most_lost_s]
        self.best = max(cheap or found, key=lambda each: each.tokens_s)
        if self.gain < ENTER or not cheap:
            same = [each for each in found if each.plan.mode == self.best.plan.mode]
            self.best = min(same, key=lambda each: (losses_s[each.plan], -each.tokens_s))

    def look_at_rest(self) -> None:
        """Plain decoding and lookups, as they are now. The best plan with the draft engine is taken
        to have changed as plain decoding has, until ``look`` finds out."""
        before, round_s = self.plain, self.pace.plain_s(self.batch)
        self.plain = Forecast(PLAIN, self.batch / round_s, round_s)
        change = self.plain.tokens_s / before.tokens_s
        best = self.best
        self.best = Forecast(best.plan, change * best.tokens_s, best.round_s / change)
        was_copying = self.rest.plan is not PLAIN
        self.rest = self.plain
        if self.lookup is not None:
            found = self._of_lookups(self.lookup)
            self._lookups_s = found.tokens_s
            found = found._replace(tokens_s=self._realised.factor * found.tokens_s)
            if found.tokens_s >= (1.0 if was_copying else ENTER) * self.plain.tokens_s:
                self.rest = found

    def look(self, is_open: Callable[[RoundPlan], bool] | None = None) -> RoundPlan | None:
        """Put the best plan into the model again, and its neighbours that are ``is_open``. Returns
        the plan that another one has taken the place of, if so."""
        self.look_at_rest()
        if not self.plans:
            self.best = self.plain
            return None
        laws = self.laws.now()
        self.best = now = self._of(self.best.plan, laws)
        if is_open is None:
            return None
        near = [plan for plan in self.plans if is_near(now.plan, plan) and is_open(plan)]
        best = max(
            (self._of(plan, laws) for plan in near), key=lambda each: each.tokens_s, default=now
        )
        if best.tokens_s < SWITCH * now.tokens_s:
            return None
        self.best = best
        return now.plan

    def copied(self, num_tokens: int, seconds: float) -> None:
        """A round of lookups emitted so many tokens and took so long."""
        self._realised.see(num_tokens, self._lookups_s * seconds)

    @property
    def gain(self) -> float:
        """Predicted speed of the best plan with the draft engine, in that of the rest."""
        return self.best.tokens_s / self.rest.tokens_s

    @property
    def copying_gain(self) -> float:
        """Predicted speed of the rest, in that of plain decoding."""
        return self.rest.tokens_s / self.plain.tokens_s

    @property
    def speedups(self) -> dict[str, float]:
        """Predicted speed in plain decoding's, of what there is: the best plan with the draft
        engine (``model``), and lookups."""
        plain = self.plain.tokens_s
        found = {"model": self.best.tokens_s / plain} if self.plans else {}
        if self.lookup is not None:
            found["lookup"] = self._realised.factor * self._lookups_s / plain
        return found

    @property
    def least_loss_s(self) -> float:
        """What a bad round of the plan that loses least costs."""
        return self.most_lost_s(self._cheapest)

    def most_lost_s(self, plan: RoundPlan) -> float:
        """The most that a round by the plan loses against plain decoding: each row emits one token
        at least, or under jit one row does while the others sit it out."""
        if plan.mode == "ar":
            return 0.0
        longest_s = self.longest_s(plan)
        least = 1 / self.batch if may_wait(plan) else 1.0
        return max(0.0, longest_s - least * self.plain.round_s)

    def longest_s(self, plan: RoundPlan) -> float:
        """Seconds of a round by the plan if it goes as badly as it can."""
        return longest_round_s(self.pace.times(kind_of(plan)), self.batch, plan)

    def saved_s(self, num_tokens: float) -> float:
        """Seconds that the best plan saves where so many tokens are left to emit."""
        return num_tokens * (1 / self.rest.tokens_s - 1 / self.best.tokens_s)

    def _of(self, plan: RoundPlan, laws: Laws) -> Forecast:
        times = self.pace.times(kind_of(plan))
        found = predict(times, laws, self.batch, plan)
        if plan.drafter is not Drafter.BOTH:
            return Forecast(plan, found.tokens_s, found.round_s)
        by_model = laws.kinds[ProposalKind.JIT if plan.mode == "sd" else ProposalKind.HIT]
        other = by_model.tokens(plan.num_draft)
        if plan.mode == "sd":
            other *= DRAFTING  # the round waits for the model's
        copied = self.copies.forecast(plan.num_draft, plan.floor, other - 1)
        share, tokens = copied.share, found.tokens_round
        seconds = found.round_s
        if plan.mode == "sd":  # where all rows copy, nothing is drafted
            spared = share**self.batch
            widths = zip(copied.widths[1:], self._widths_s(times, plan)[1:], strict=True)
            copied_s = sum(each * seconds for each, seconds in widths) / share if share else 0.0
            seconds = spared * (copied_s + times.exchange_s) + (1 - spared) * found.round_s
        tokens = share * copied.tokens + (1 - share) * tokens
        return Forecast(plan, self.batch * tokens / seconds, seconds)

    def _of_lookups(self, plan: RoundPlan) -> Forecast:
        times = self.pace.times(kind_of(plan))
        copied = self.copies.forecast(plan.num_draft, plan.floor)
        seconds = copied.most_s(self._widths_s(times, plan), self.batch) + times.exchange_s
        tokens = copied.share * copied.tokens + copied.widths[0]
        return Forecast(plan, self.batch * tokens / seconds, seconds)

    def _widths_s(self, times: PairTimes, plan: RoundPlan) -> tuple[float, ...]:
        """Seconds of a verification of 0, 1, ... K drafts a row."""
        widths = range(1, plan.num_draft + 2)
        return tuple(times.target.seconds(self.batch, width) for width in widths)
