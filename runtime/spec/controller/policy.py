"""The controller: what the next round shall be, by the cost model and the last rounds.

While the draft engine rests, rounds are plain, or copy from the text where lookups look faster:
what those would yield is known from every round (``runtime.spec.controller.copies``), so they need
no trial. Whether the draft's own tokens are worth their time shows only where it drafts.

Its states and what leads from one to the next stand in ``runtime.spec.controller.state``. In TRIAL
and ON an account that does not cover the next round leads to REST, too. It begins with CHECK where
calibration predicts a gain, else with REST. A draft that is gone leaves REST for good.

It is never stuck one way. In REST the pause is bounded, so drafts that have become right are found
out; in ON a few plain rounds now and then keep the other side of the comparison fresh. What trials
may cost is for ``runtime.spec.controller.credit`` to say, with the bound that follows from it. What
was learnt belongs to the pair, not to a text: it survives from one request to the next.

K, W, the fallback and the mode change while speculation is on, one step at a time: now and then the
neighbours of the plan are put into the cost model, with the laws and times of the last rounds, and
the best of them is taken if it beats the plan by SWITCH, and if the account covers two bad rounds
of it beside those in flight. So drafts that are right make K grow and drafts that are wrong make it
shrink. Where nothing looks like a gain, a trial is made with the plan that loses least.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.spec.controller.account import Account
from runtime.spec.controller.changes import Changes, sentence
from runtime.spec.controller.choices import Choices, spelt
from runtime.spec.controller.credit import Credit
from runtime.spec.controller.forecasts import ENTER, Forecasts
from runtime.spec.controller.learning import Learning
from runtime.spec.controller.reading import Reading
from runtime.spec.controller.resting import Resting, has_drifted
from runtime.spec.controller.state import State
from runtime.spec.cost import Laws, PairTimes
from runtime.spec.plan import PLAIN, Outlook, RoundPlan, RoundReport

TRIAL_ROUNDS = 4
"""Judged rounds of a trial. Drafts that are right half of the time show it in these; what shows
only in more is not worth more."""
MOST_TRIAL_ROUNDS = 32
"""Launched ones: a draft may be behind at first, and ssd begins without drafts."""
FIRST_PAUSE, LONGEST_PAUSE = 16, 512
"""Rounds of rest between two trials: doubled by each that fails. The longest one is what it may
take to notice that another kind of text has begun."""
THINK_EVERY = 4
"""Rounds between two thoughts about what the draft would have to read."""
LOOK_EVERY = 8
"""Rounds between two looks at the model: one round hardly moves it. Every second look is at the
neighbours of the plan, too, which takes some tenths of a millisecond of the host."""
SOONEST_LOOK, LOW_ROUNDS = 4, 3
"""Where the account covers no more than so many bad rounds, a look comes after so few rounds."""
CHECK_EVERY, CHECK_ROUNDS = 128, 3
"""Speculative rounds between two checks of plain decoding, and plain rounds of a check: 2.3 % of
what speculation gains."""
COPY_CHECK_EVERY = 48
"""The same of lookups, which gain less."""
COPYING = 1.3
"""Where lookups are so much faster than plain rounds, a draft that is not expected to be faster yet
waits until the text repeats itself less: a trial would cost what they gain."""
TOO_LITTLE = "too little to come for what the draft has to read"


class Controller:
    """A ``Policy``. No clock, no device: all it knows of time is in the reports.

    ``note`` says in one line what is done now and why; ``credit`` is to be read.
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
        self._forecasts = Forecasts(times, prior, choices, batch)
        self._learning = Learning(self._forecasts, is_cut=is_cut)
        self._reading = Reading(times)
        self._resting = Resting(COPY_CHECK_EVERY, CHECK_ROUNDS)
        self._account = Account(self._forecasts, self._reading)
        self._changes = Changes(on_change)
        self._is_over = not self._forecasts.plans and self._forecasts.lookup is None
        self._state = State.REST
        self._pause = FIRST_PAUSE
        self._paused_at = self._forecasts.batch
        self._num_rounds = 0
        self._since = 0  # rounds launched in this state
        self._since_look = 0
        self._num_verdicts = 0  # rounds of this state that showed something of the draft
        self._plain_s = 0.0  # a plain round, when it was looked at last
        self._has_joined = False  # a text, since it was last thought about
        self._begin()

    @property
    def note(self) -> str:
        """What is done now and why."""
        return self._changes.note

    @property
    def speedups(self) -> dict[str, float]:
        """Predicted speed in plain decoding's, by who drafts: the ``model``, by the plan that runs
        or would be tried next, and ``lookup``. Above 1: it pays. May be read from any thread."""
        return self._forecasts.speedups

    @property
    def credit(self) -> Credit:
        """What speculation may lose now."""
        return self._account.credit

    @property
    def watches_lookups(self) -> bool:
        """See ``Policy``."""
        return self._forecasts.may_copy

    def next_round(self, look: Callable[[], Outlook]) -> RoundPlan:
        """See ``Policy``."""
        plan = PLAIN if self._is_over else self._choose(look)
        self._changes.tell_rest(self._num_rounds)
        self._account.launch(plan)
        self._since += 1
        self._num_rounds += 1
        return plan

    def joins(self, num_prompt: int, num_left: int) -> bool:
        """See ``Policy``."""
        self._has_joined = True
        self._reading.text_begins()
        self._forecasts.copies.begin_text(self._forecasts.batch)
        if self._is_over or self._state not in (State.ON, State.CHECK):
            return False  # a trial's reading is paid for like its rounds
        return self._repays(Outlook(num_left, num_prompt), 1)

    def observe(self, report: RoundReport) -> None:
        """See ``Policy``."""
        self._account.land()
        if self._is_over or not report.rows:
            return
        if self._learning.count_texts(report):
            self._look(wide=self._state is State.ON)
        self._num_verdicts += self._learning.learn(report)
        self._account.settle(report)
        self._since_look += 1
        if self._since_look % LOOK_EVERY == 0:
            self._look(wide=self._is_speculating and self._since_look >= 2 * LOOK_EVERY)

    def failed(self, reason: str) -> None:
        """See ``Policy``."""
        self._is_over = True
        self._state = State.REST
        self._changes.add(self._num_rounds, f"auto runs ar for good: {reason}")

    # choosing

    def _choose(self, look: Callable[[], Outlook]) -> RoundPlan:
        if self._state is State.REST:
            if self._since >= self._pause and self._since % THINK_EVERY == 0:
                self._consider_trial(look())
        elif self._state is State.TRIAL:
            self._judge_trial(look)
        elif self._state is State.ON:
            self._reconsider(look)
        elif self._state is State.ASIDE:
            if self._since % THINK_EVERY == 0 and self._repays(look()):
                self._turn(State.ON, "this text repays what the draft has to read")
            elif self._since >= LONGEST_PAUSE:
                self._turn(State.REST, "the draft has rested for long")
        elif self._since >= CHECK_ROUNDS:
            self._end_check(look)
        if self._is_speculating:
            if self._account.covers(self._account.loss_s):
                return self._forecasts.best.plan
            self._give_up("the last rounds were slower than plain ones")
        return PLAIN if self._state is State.CHECK else self._rest()

    @property
    def _is_speculating(self) -> bool:
        return self._state in (State.TRIAL, State.ON)

    def _rest(self) -> RoundPlan:
        """A round without the draft engine."""
        found = self._forecasts.rest.plan
        is_covered = found is not PLAIN and self._account.covers(self._forecasts.most_lost_s(found))
        plain_s = self._forecasts.plain.round_s
        plan = self._resting.next_round(found if is_covered else PLAIN, plain_s)
        if self._resting.has_changed:
            if self._resting.is_copying:
                self._tell("the text repeats itself")
            elif found is PLAIN:
                self._tell("copies do not pay now")
            else:
                self._tell("the last copies were slower than plain rounds")
        return plan

    def _consider_trial(self, outlook: Outlook) -> None:
        forecasts, batch = self._forecasts, self._forecasts.batch
        if not batch / 2 < self._paused_at < batch * 2:
            # What was found out about so many rows does not hold for so few.
            self._paused_at, self._pause = batch, FIRST_PAUSE
            return
        is_beaten = forecasts.copying_gain > COPYING and forecasts.gain < 1.0
        is_short = outlook.num_left < TRIAL_ROUNDS * batch
        if not forecasts.plans or is_beaten or is_short or not self._affords(outlook):
            return
        self._learning.fade()
        forecasts.scan(self._account.for_rounds_s / TRIAL_ROUNDS)
        self._account.value()
        if not self._affords(outlook):
            return  # the cheapest trial has more to lose than it had
        self._account.earned_s = 0.0
        self._turn(State.TRIAL, "a trial")
        self._reading.begins(outlook.num_lacking)

    def _affords(self, outlook: Outlook) -> bool:
        """Whether a trial, or what is left of it, may cost what it may, reading included."""
        reading_s = self._reading.seconds(outlook.num_lacking)
        num_left = self._reading.left(outlook, self._forecasts.batch)
        has_joined, self._has_joined = self._has_joined, False
        num_rounds = TRIAL_ROUNDS
        if self._state is State.TRIAL:
            num_rounds -= self._num_verdicts
        return self._account.affords(num_rounds, reading_s, num_left, is_new_text=has_joined)

    def _judge_trial(self, look: Callable[[], Outlook]) -> None:
        if self._num_verdicts >= TRIAL_ROUNDS or self._since >= MOST_TRIAL_ROUNDS:
            self._look(wide=True)
            if self._forecasts.gain >= ENTER:
                self._turn(State.ON, "a trial went well")
            else:
                self._give_up("a trial went badly")
        elif self._has_joined:
            self._has_joined = False
            outlook = look()
            if outlook.num_lacking and not self._affords(outlook):
                self._turn(State.REST, "a trial is put off for a shorter text")
                self._since = self._pause
            else:
                self._reading.begins(outlook.num_lacking)

    def _reconsider(self, look: Callable[[], Outlook]) -> None:
        if self._forecasts.gain < 1.0:
            self._give_up("drafts are accepted too seldom")
        elif self._since >= CHECK_EVERY or has_drifted(
            self._plain_s, self._forecasts.plain.round_s, self._since
        ):
            self._turn(State.CHECK)
        elif self._since_look >= SOONEST_LOOK and not self._account.covers(
            LOW_ROUNDS * self._account.loss_s
        ):
            self._look(wide=True)  # fewer drafts may be worth it still
        if self._state is State.ON and (self._has_joined or self._since % THINK_EVERY == 0):
            self._has_joined = False
            if not self._repays(look()):
                self._turn(State.ASIDE, TOO_LITTLE)

    def _repays(self, outlook: Outlook, batch: int | None = None) -> bool:
        """Whether the best plan saves more than its draft takes to read the texts: all of the
        batch, or so many."""
        num_left = self._reading.left(outlook, batch or self._forecasts.batch)
        saved_s = self._forecasts.saved_s(num_left)
        return self._reading.seconds(outlook.num_lacking) <= max(0.0, saved_s)

    def _end_check(self, look: Callable[[], Outlook]) -> None:
        self._look(wide=True)
        if self._forecasts.gain < 1.0:
            self._give_up("plain rounds are faster than they were")
        elif self._repays(look()):
            self._turn(State.ON)
        else:
            self._turn(State.ASIDE, TOO_LITTLE)

    def _give_up(self, why: str) -> None:
        """Back to rest: for long if speculation earned nothing."""
        paid = self._state is not State.TRIAL and self._account.earned_s > 0
        self._pause = FIRST_PAUSE if paid else min(LONGEST_PAUSE, 2 * self._pause)
        self._paused_at = self._forecasts.batch
        self._account.saving_s = 0.0
        self._turn(State.REST, why)
        self._forecasts.scan()
        self._account.value()

    def _turn(self, state: State, why: str | None = None) -> None:
        self._state, self._since, self._num_verdicts = state, 0, 0
        self._plain_s = self._forecasts.plain.round_s
        self._reading.breaks_off()
        if why is not None:
            self._tell(why)

    def _begin(self) -> None:
        self._account.value()
        if self._is_over:
            self._changes.add(0, "auto runs ar: there is no draft to speculate with")
            return
        # Plain rounds come first either way: what all is compared with was measured at rest.
        pays = self._forecasts.gain >= ENTER and bool(self._forecasts.plans)
        self._turn(State.CHECK if pays else State.REST, "by calibration")

    def _tell(self, why: str) -> None:
        plan = self._forecasts.best.plan
        if self._state in (State.REST, State.ASIDE):
            plan = self._forecasts.rest.plan if self._resting.is_copying else PLAIN
        self._changes.add(self._num_rounds, sentence(plan, why, self._forecasts))

    # the model

    def _look(self, *, wide: bool = False) -> None:
        """Put the plans into the model again; ``wide``: the neighbours of the best, too."""
        if not self._is_speculating and not wide:
            self._forecasts.look_at_rest()
            self._account.value()
            return
        if wide:
            self._since_look = 0
        left = self._forecasts.look(self._is_open if wide else None)
        if left is not None and self._state is not State.TRIAL:
            self._tell(f"better than {spelt(left)}")
        self._account.value()

    def _is_open(self, plan: RoundPlan) -> bool:
        """Whether the plan may follow the present one."""
        loss_s = self._forecasts.most_lost_s(plan)
        return loss_s <= self._account.loss_s or self._account.covers(2 * loss_s)
