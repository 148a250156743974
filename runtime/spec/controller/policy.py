"""The controller: what the next round shall be, by the cost model and the last rounds.

    state   rounds are    until                                         then
    ------  ------------  --------------------------------------------  -----------------------
    PLAIN   plain         the pause is over, the account covers a trial TRIAL
                          and owes nothing
    TRIAL   speculative   TRIAL_ROUNDS of them were judged              ON if the model predicts a
                                                                        gain now, else PLAIN, for
                                                                        twice as long
    ON      speculative   the model predicts a loss                     PLAIN
    CHECK   plain         CHECK_ROUNDS of them were launched            ON, if that still pays

In TRIAL and ON an account that does not cover the next round leads to PLAIN, too.

It is never stuck one way. In PLAIN the pause is bounded, so drafts that have become right are found
out; in ON a few plain rounds now and then keep the other side of the comparison fresh. What trials
may cost is for ``runtime.spec.controller.credit`` to say, with the bound that follows from it.

K, W, the fallback and the mode change while speculation is on, one step at a time: now and then the
neighbours of the plan are put into the cost model, with the laws and times of the last rounds, and
the best of them is taken if it beats the plan by SWITCH, and if the account covers two bad rounds
of it beside those in flight. So drafts that are right make K grow and drafts that are wrong make it
shrink. Where nothing looks like a gain, a trial is made with the plan that loses least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from runtime.spec.controller.changes import Changes
from runtime.spec.controller.choices import (
    Choices,
    as_if_uncut,
    is_near,
    longest_round_s,
    may_wait,
    spelt,
)
from runtime.spec.controller.credit import Credit
from runtime.spec.controller.laws import RecentLaws
from runtime.spec.controller.pace import Pace
from runtime.spec.cost import Laws, PairTimes, Prediction, predict
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport

TRIAL_ROUNDS = 4
"""Judged rounds of a trial. Drafts that are right half of the time show it in these; what shows
only in more is not worth more."""
MOST_TRIAL_ROUNDS = 32
"""Launched ones: a draft may be behind at first, and ssd begins without drafts."""
FIRST_PAUSE, LONGEST_PAUSE = 16, 512
"""Plain rounds between two trials: doubled by each that fails. The longest one is what it may take
to notice that another kind of text has begun."""
LOOK_EVERY = 8
"""Rounds between two looks at the model: one round hardly moves it. Every second look is at the
neighbours of the plan, too, which takes some tenths of a millisecond of the host."""
SOONEST_LOOK, LOW_ROUNDS = 4, 3
"""Where the account covers no more than so many bad rounds, a look comes after so few rounds."""
CHECK_EVERY, CHECK_ROUNDS = 256, 3
"""Speculative rounds between two checks of plain decoding, and plain rounds of a check: 1.2 % of
what speculation gains."""
ENTER, SWITCH = 1.03, 1.03
"""How much faster something else must look to be tried. Going back to plain decoding needs no
margin: it is what the bound is measured against."""
STALL = 4.0
"""A round that takes longer than so many times the longest forecast was held up by the system: no
more of it is charged. A second's pause would keep speculation off for a minute."""
MOST_IN_FLIGHT = 3
"""Rounds that are launched and not yet reported, at most."""


class State(Enum):
    """See the module's table."""

    PLAIN = auto()
    TRIAL = auto()
    ON = auto()
    CHECK = auto()


class Controller:
    """A ``Policy``. No clock, no device: all it knows of time is in the reports.

    ``note`` says in one line what is done now and why; ``credit`` is the account, to be read.
    """

    def __init__(
        self,
        times: PairTimes,
        prior: Laws,
        choices: Choices,
        *,
        batch: int = 1,
        is_cut: bool = False,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        """``times`` and ``prior`` are what calibration found. ``is_cut``: proposals may end before
        K (``runtime.spec.length``). ``on_change`` is told of changes of mind, not more often than
        ``changes.SPACING`` says."""
        self._pace = Pace(times)
        self._laws = RecentLaws(prior, choices.num_draft)
        self._plans = choices.plans()
        self._batch = max(1, batch)
        self._is_cut = is_cut
        self.credit = Credit()
        self._changes = Changes(on_change)
        self._in_flight: deque[float] = deque(maxlen=MOST_IN_FLIGHT)  # what each may lose
        self._rows: dict[int, tuple[RowReport, RoundPlan]] = {}  # each slot's last one
        self._slots: set[int] = set()  # of the last report
        self._is_over = not self._plans
        self._state = State.PLAIN
        self._pause = FIRST_PAUSE
        self._paused_at = self._batch
        self._num_rounds = 0
        self._since = 0  # rounds launched in this state
        self._since_look = 0
        self._since_verdict = 0  # rounds that showed nothing of the draft
        self._num_verdicts = 0  # rounds of this state that did
        self._earned_s = 0.0  # by speculation since it was taken up
        self._scan()
        self._begin()

    @property
    def note(self) -> str:
        """What is done now and why."""
        return self._changes.note

    def next_round(self) -> RoundPlan:
        """See ``Policy``."""
        plan = PLAIN if self._is_over else self._choose()
        self._changes.tell_rest(self._num_rounds)
        self._in_flight.append(0.0 if plan is PLAIN else self._loss_s)
        self._since += 1
        self._num_rounds += 1
        return plan

    def observe(self, report: RoundReport) -> None:
        """See ``Policy``."""
        if self._in_flight:
            self._in_flight.popleft()
        if self._is_over or not report.rows:
            return
        self._count_texts(report)
        self._learn(report)
        self._pace.see(report, self._batch, is_cut=self._is_cut)
        self._settle(report)
        self._since_look += 1
        if self._since_look % LOOK_EVERY == 0:
            self._look(wide=self._is_speculating and self._since_look >= 2 * LOOK_EVERY)

    def failed(self, reason: str) -> None:
        """See ``Policy``."""
        self._is_over = True
        self._state = State.PLAIN
        self._changes.add(self._num_rounds, f"auto runs ar for good: {reason}")

    # choosing

    def _choose(self) -> RoundPlan:
        if self._state is State.PLAIN:
            self._consider_trial()
        elif self._state is State.TRIAL:
            self._judge_trial()
        elif self._state is State.ON:
            self._reconsider()
        elif self._since >= CHECK_ROUNDS:
            self._look(wide=True)
            if self._gain >= 1.0:
                self._turn(State.ON)
            else:
                self._give_up("plain rounds are faster than they were")
        if self._is_speculating and not self._covers(1):
            self._give_up("the last rounds were slower than plain ones")
        return self._best.plan if self._is_speculating else PLAIN

    @property
    def _is_speculating(self) -> bool:
        return self._state in (State.TRIAL, State.ON)

    def _consider_trial(self) -> None:
        if not self._batch / 2 < self._paused_at < self._batch * 2:
            # What was found out about so many rows does not hold for so few.
            self._paused_at, self._pause = self._batch, FIRST_PAUSE
        if self._since < self._pause or self.credit.debt_s or not self._covers(TRIAL_ROUNDS):
            return
        self._laws.fade(self._since_verdict)
        self._since_verdict = 0
        self._scan()
        if not self._covers(TRIAL_ROUNDS):
            return  # what is tried now has more to lose
        self._earned_s = 0.0
        self._turn(State.TRIAL)

    def _judge_trial(self) -> None:
        if self._num_verdicts < TRIAL_ROUNDS and self._since < MOST_TRIAL_ROUNDS:
            return
        self._look(wide=True)
        if self._gain >= ENTER:
            self._turn(State.ON, "a trial went well")
        else:
            self._give_up("a trial went badly")

    def _reconsider(self) -> None:
        if self._gain < 1.0:
            self._give_up("drafts are accepted too seldom")
        elif self._num_verdicts >= CHECK_EVERY:
            self._turn(State.CHECK)
        elif self._since_look >= SOONEST_LOOK and not self._covers(LOW_ROUNDS):
            self._look(wide=True)  # fewer drafts may be worth it still

    def _covers(self, num_rounds: int) -> bool:
        return self.credit.covers(num_rounds * self._loss_s + sum(self._in_flight))

    def _give_up(self, why: str) -> None:
        """Back to plain decoding: for long if speculation earned nothing."""
        paid = self._state is not State.TRIAL and self._earned_s > 0
        self._pause = FIRST_PAUSE if paid else min(LONGEST_PAUSE, 2 * self._pause)
        self._paused_at = self._batch
        self._turn(State.PLAIN, why)
        self._scan()

    def _turn(self, state: State, why: str | None = None) -> None:
        self._state, self._since, self._num_verdicts = state, 0, 0
        if why is not None:
            self._tell(why)

    def _begin(self) -> None:
        if self._is_over:
            self._changes.add(0, "auto runs ar: there is no draft to speculate with")
        else:
            # Plain rounds come first either way: what all is compared with was measured at rest.
            self._turn(State.CHECK if self._gain >= ENTER else State.PLAIN, "by calibration")

    def _tell(self, why: str) -> None:
        best, plain = self._best, self._plain
        found = f"{spelt(best.plan)} {best.tokens_s:.0f} tokens/s, ar {plain.tokens_s:.0f}"
        shown = "ar" if self._state is State.PLAIN else spelt(best.plan)
        line = (
            f"auto runs {shown} ({why}; predicted: {found}; "
            f"first drafts accepted {self._laws.acceptance:.0%})"
        )
        self._changes.add(self._num_rounds, line)

    # the model

    @property
    def _gain(self) -> float:
        """Predicted speed of the best speculative plan, in that of plain decoding."""
        return self._best.tokens_s / self._plain.tokens_s

    def _scan(self) -> None:
        """Put all plans into the model."""
        laws = self._laws.now()
        self._plain = self._predict(PLAIN, laws)
        found = [self._predict(plan, laws) for plan in self._plans] or [self._plain]
        self._best = max(found, key=lambda each: each.tokens_s)
        if self._gain < ENTER:
            same = [each for each in found if each.plan.mode == self._best.plan.mode]
            self._best = min(same, key=lambda each: (self._most_lost_s(each.plan), -each.tokens_s))
        self._after_look()

    def _look(self, *, wide: bool = False) -> None:
        """Put the plan into the model again; ``wide``: its neighbours, too."""
        laws = self._laws.now()
        self._plain = self._predict(PLAIN, laws)
        self._best = now = self._predict(self._best.plan, laws)
        if wide:
            self._since_look = 0
            near = [self._predict(each, laws) for each in self._plans if self._is_open(each)]
            best = max(near, key=lambda each: each.tokens_s, default=now)
            if best.tokens_s >= SWITCH * now.tokens_s:
                self._best = best
                if self._state is not State.TRIAL:
                    self._tell(f"better than {spelt(now.plan)}")
        self._after_look()

    def _is_open(self, plan: RoundPlan) -> bool:
        """Whether the plan may follow the present one."""
        if not is_near(self._best.plan, plan):
            return False
        loss_s = self._most_lost_s(plan)
        return loss_s <= self._loss_s or self.credit.covers(2 * loss_s + sum(self._in_flight))

    def _after_look(self) -> None:
        self._loss_s = self._most_lost_s(self._best.plan)
        self.credit.value(self._loss_s)

    def _most_lost_s(self, plan: RoundPlan) -> float:
        """The most that a round by the plan loses: each row emits one token at least, or under jit
        one row does while the others sit it out."""
        longest_s = longest_round_s(self._pace.times(plan.mode), self._batch, plan)
        least = 1 / self._batch if may_wait(plan) else 1.0
        return max(0.0, longest_s - least * self._plain.round_s)

    def _predict(self, plan: RoundPlan, laws: Laws) -> Prediction:
        return predict(self._pace.times(plan.mode), laws, self._batch, plan)

    # learning

    def _count_texts(self, report: RoundReport) -> None:
        """Rows that missed may sit the next round out under jit, and are not in its report."""
        slots = {row.slot for row in report.rows}
        batch = len(slots | self._slots if may_wait(report.plan) else slots)
        self._slots = slots
        if batch != self._batch:
            self._batch = batch
            self._look(wide=self._state is State.ON)

    def _learn(self, report: RoundReport) -> None:
        is_verdict = False
        for row in report.rows:
            before, plan_before = self._rows.get(row.slot, (None, PLAIN))
            self._rows[row.slot] = row, report.plan
            if row.is_behind:
                continue
            kind, num_drafted = row.kind, row.num_drafted
            if self._is_cut:
                kind, num_drafted = as_if_uncut(row, report.plan, plan_before)
            is_verdict |= num_drafted > 0 or row.hit is not None
            self._laws.see(kind, num_drafted, row.accepted)
            if before is None or row.hit is None:
                continue
            all_accepted = before.accepted == before.num_drafted
            self._laws.see_rank(before.kind, row.rank, all_accepted=all_accepted)
            if not row.hit and plan_before.fallback is Fallback.LOOKUP:
                self._laws.see_copy(is_found=row.kind is ProposalKind.LOOKUP)
        self._num_verdicts += is_verdict
        self._since_verdict = 0 if is_verdict else self._since_verdict + 1

    def _settle(self, report: RoundReport) -> None:
        num_emitted = sum(row.num_emitted for row in report.rows)
        plain_s = num_emitted * self._plain.round_s / self._batch
        seconds = report.seconds
        if seconds is None:  # with something else in it: the engines' own time, and the usual gap
            seconds = report.verify_s + report.exposed_s + self._pace.gap_s(report.plan.mode)
        longest_s = longest_round_s(self._pace.times(report.plan.mode), self._batch, report.plan)
        seconds = plain_s if report.plan.mode == "ar" else min(seconds, STALL * longest_s)
        self._earned_s += plain_s - seconds
        is_catching_up = any(row.is_behind for row in report.rows)
        self.credit.settle(plain_s, seconds, is_catching_up=is_catching_up)
