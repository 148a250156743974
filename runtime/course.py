"""The rounds under way: which is queued next, and what those say that were decided.

What is queued is the policy's plan, as soon as the draft can follow it.

While rounds are plain the draft rests, and the texts go on without it. Where the policy wants it
back it has to catch up first:

    the plan asks for the draft       all that is under way is read; the draft is told the texts
    it lacks more than AT_ONCE        it feeds that, rounds go on plain; looked at again each round
    it lacks less                     it feeds the rest beside the first round that it drafts for

The same happens, with nothing to feed, where ``sd`` follows ``ssd`` or the other way round, or
lookups alone follow anything. These leave the draft's cache behind, as plain rounds do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from engines.errors import CapacityError, DeviceError
from engines.profiles import PROMPT_CHUNK, PROMPT_STEP
from runtime.round import Rounds
from runtime.side import Side
from runtime.spec.drafter import Drafter
from runtime.spec.lookup import LookupChain
from runtime.spec.plan import (
    MODES,
    PLAIN,
    Outlook,
    Policy,
    RoundPlan,
    RoundReport,
    RowReport,
)
from runtime.stats import NO_FIGURES
from runtime.ticket import Flight, OnRound, Ticket, TicketState
from runtime.workers import mailbox as mail
from runtime.workers.api import Drafts, Verifies
from runtime.workers.mailbox import Kind

AT_ONCE = 2 * PROMPT_CHUNK
"""Tokens that a text may lack on the draft's side when it drafts for it again: a call or two."""


class Course:
    """Asks the policy, keeps the draft in step with it, and tells it what came of each round.

    ``figures`` are the mailbox's, in the last reading.
    """

    def __init__(
        self,
        rounds: Rounds,
        policy: Policy,
        mode: str,
        target: Side[Verifies],
        draft: Side[Drafts] | None,
        on_round: OnRound | None,
    ) -> None:
        """``mode`` is the one to expect until the policy is asked for the first time."""
        self.figures: Sequence[float] = NO_FIGURES
        self._rounds = rounds
        self._policy = policy
        self._rank_at = target.worker.mailbox.rank_at
        self._draft = None if draft is None else draft.worker
        self._looks_up = rounds.looks_up
        self._on_round = on_round
        self._flights: deque[Flight] = deque()
        self._asked = mode
        self._ran: str | None = None  # the last round's mode since the draft knew all texts
        self._is_in_step = True
        self._is_catching_up = False
        self._is_steady = self._is_timed = False
        self._is_told = False  # that the draft is gone
        self._num_rounds = 0

    @property
    def num_under_way(self) -> int:
        """Rounds that were queued and not read yet."""
        return len(self._flights)

    def feeds_draft(self, ticket: Ticket) -> bool:
        """Whether the draft is fed the ticket's prompt as the target is: not while it rests, nor
        where the policy finds it too dear."""
        follows = self._draft is not None and self._asked != "ar" and self._is_in_step
        return follows and ticket.feeds_draft

    def disturb(self) -> None:
        """Something else than a round is queued."""
        self._is_steady = self._is_timed = False

    def admit(self, ticket: Ticket) -> None:
        """The ticket's text joins."""
        self.disturb()
        request = ticket.request
        num_prompt = len(request.prompt)
        num_left = min(request.max_tokens, request.max_len - num_prompt)
        ticket.feeds_draft = self._policy.joins(num_prompt - ticket.num_held, num_left)
        if self._policy.watches_lookups and self._draft is not None:
            ticket.lookups = LookupChain(request.prompt, self._draft.plan.num_draft)
        self.given(ticket)

    def given(self, ticket: Ticket) -> None:
        """Rows of another text were given to the ticket's."""
        self.disturb()
        if self._draft is not None and ticket.num_fed - ticket.num_held > AT_ONCE:
            self._is_in_step = False

    def reset(self) -> None:
        """No text is left, so there is none that the draft does not know."""
        self._ran, self._is_in_step, self._is_catching_up = None, True, False
        self.disturb()

    def fed(self, ticket: Ticket) -> None:
        """A chunk of the ticket's prompt was queued."""
        self.disturb()
        ticket.num_fed = min(ticket.num_fed + PROMPT_CHUNK, len(ticket.request.prompt) - 1)
        if self.feeds_draft(ticket):
            ticket.num_held = ticket.num_fed
        else:
            self._is_in_step = False

    def launch(
        self, rows: Sequence[Ticket | None], drain: Callable[[], None], *, scores: bool
    ) -> None:
        """Queue one round for ``rows``, the tickets by slot. ``drain`` reads what is under way,
        and may end tickets: without one that still runs nothing is queued."""
        if not self._flights:
            self.disturb()
        if self._rounds.note is not None and not self._is_told:
            self._is_told = True
            self._policy.failed(self._rounds.note)
        asked = self._policy.next_round(partial(self._outlook, rows))
        self._check(asked)
        self._asked = asked.mode
        ran = asked if self._can_run(asked, rows, drain) else PLAIN
        if self._rounds.note is not None:  # looked at last: the draft may be given up on the way
            ran = PLAIN
        running = tuple(
            (index, ticket)
            for index, ticket in enumerate(rows)
            if ticket is not None and ticket.state is TicketState.RUNNING
        )
        is_continued = ran.mode == "ssd" and self._rounds.has_proposals
        flight = Flight(
            self._num_rounds + 1, running, asked, ran, is_continued, self._is_steady, self._is_timed
        )
        if not running:
            self._policy.observe(_empty(flight))
            return
        self._rounds.launch(ran, scores=scores)
        self._flights.append(flight)
        self._num_rounds += 1
        self._ran = _way(ran)
        self._is_in_step = ran.mode != "ar"
        self._is_steady = self._is_timed = True

    def take(self) -> list[tuple[Ticket, list[int]]]:
        """Wait for the oldest round and commit its tokens: each ticket that it judged, and what
        has become certain of its text. One that has left since it was queued gets nothing of it.
        """
        reading, begun = self._rounds.outcomes(), self.figures
        flight = self._flights.popleft()
        if reading is None:
            self._policy.observe(_empty(flight))
            return []
        self.figures = reading.figures
        taken, reports = [], []
        for index, ticket in flight.rows:
            cells = reading.rows[index]
            if ticket.state is not TicketState.RUNNING or cells[mail.KIND] == Kind.SKIP:
                continue
            ticket.decoding_at = ticket.decoding_at or self.figures[mail.STARTED_AT]
            tokens, report = ticket.take(
                flight, index, cells, reading.logprobs[index], self._rank_at
            )
            taken.append((ticket, tokens))
            reports.append(report)
        report_of_round = _report(flight, reports, begun, self.figures)
        self._policy.observe(report_of_round)
        if self._on_round is not None:
            self._on_round(report_of_round)
        return taken

    def drop(self) -> None:
        """Nobody is left to read the rounds under way for."""
        self._rounds.drop()
        while self._flights:
            self._policy.observe(_empty(self._flights.popleft()))

    def _can_run(
        self, plan: RoundPlan, rows: Sequence[Ticket | None], drain: Callable[[], None]
    ) -> bool:
        """Whether the draft is in step; brings it a step nearer if it is not."""
        if plan.mode == "ar" or (self._is_in_step and self._ran in (None, _way(plan))):
            return True
        if self._rounds.note is not None:
            return False
        self._is_steady = False
        if self._is_catching_up and not self._rounds.is_caught_up:
            return False
        drain()
        held = [ticket for ticket in rows if ticket is not None and ticket.slot is not None]
        texts = [ticket.resumed for ticket in held]
        self._rounds.resume(texts)
        if plan.drafter is Drafter.LOOKUP:  # what runs needs no cache of the draft's
            held = [ticket for ticket, text in zip(held, texts, strict=True) if not text.is_running]
            texts = [text for text in texts if not text.is_running]
        lacking = [text.num_fed - ticket.num_held for ticket, text in zip(held, texts, strict=True)]
        for ticket, text, num in zip(held, texts, lacking, strict=True):
            for _ in range(_most_chunks(num)):
                self._rounds.catch_up(text.slot)
            ticket.num_held = text.num_fed
        self._is_catching_up = max(lacking, default=0) > AT_ONCE
        return not self._is_catching_up

    def _outlook(self, rows: Sequence[Ticket | None]) -> Outlook:
        num_left = num_lacking = 0
        for ticket in rows:
            if ticket is None or ticket.state is not TicketState.RUNNING:
                continue
            request = ticket.request
            num_known = len(request.prompt) + len(request.generated)
            limit = min(request.max_len, len(request.prompt) + request.max_tokens)
            num_left += limit - num_known
            if not self._is_in_step or self._ran == Drafter.LOOKUP:
                num_lacking += max(0, num_known - 1 - ticket.num_held)
        return Outlook(num_left, num_lacking)

    def _check(self, plan: RoundPlan) -> None:
        if plan.mode not in MODES:
            raise DeviceError(f"a round of mode {plan.mode!r} was planned; there are {MODES}")
        if plan.mode == "ar":
            return
        if self._draft is None:
            raise DeviceError(f"mode {plan.mode} needs a draft, and this pair has none")
        only_copies = self._draft.plan.drafter is Drafter.LOOKUP
        if only_copies and plan.drafter is not Drafter.LOOKUP:
            raise DeviceError(f"drafter {plan.drafter} needs a draft engine; this pair has lookups")
        if plan.drafter is Drafter.LOOKUP and not self._looks_up:
            raise DeviceError("a round of lookups was planned; this pair was loaded without them")
        if plan.mode == "ssd" and plan.drafter is Drafter.LOOKUP:
            raise DeviceError("drafter lookup prepares no outcomes; mode ssd was planned with it")
        most = self._draft.plan.num_draft, self._draft.plan.num_branches
        width = plan.num_branches if plan.mode == "ssd" else 1
        if not 1 <= plan.num_draft <= most[0] or not 1 <= width <= max(1, most[1]):
            raise CapacityError(
                f"a round of {plan.num_draft} drafted tokens and {plan.num_branches} branches was "
                f"planned; the pair was loaded for {most[0]} and {most[1]} at most"
            )


def _way(plan: RoundPlan) -> str:
    """What the draft has to be in step for: the mode, or lookups alone."""
    is_copying = plan.mode != "ar" and plan.drafter is Drafter.LOOKUP
    return Drafter.LOOKUP if is_copying else plan.mode


def _most_chunks(num_lacking: int) -> int:
    """Chunks that feed so many tokens at most: the first begins up to PROMPT_STEP - 1 earlier."""
    return -(-(num_lacking + PROMPT_STEP - 1) // PROMPT_CHUNK) if num_lacking > 0 else 0


def _empty(flight: Flight) -> RoundReport:
    """Of a round that was not read, or not even run: nobody's text was in it."""
    return RoundReport(flight.number, (), flight.asked)


def _report(
    flight: Flight, rows: Sequence[RowReport], begun: Sequence[float], ended: Sequence[float]
) -> RoundReport:
    """``begun`` and ``ended``: the mailbox's figures in the reading before and in this one."""
    spent = [last - first for first, last in zip(begun, ended, strict=True)]
    return RoundReport(
        flight.number,
        tuple(rows),
        flight.asked,
        seconds=spent[mail.DECIDED_AT] if flight.is_timed else None,
        verify_s=spent[mail.VERIFY_S],
        draft_s=spent[mail.DRAFT_S],
        exposed_s=spent[mail.EXPOSED_S],
        is_steady=flight.is_steady,
        span=int(ended[mail.SPAN]),
    )
