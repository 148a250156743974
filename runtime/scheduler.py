"""Continuous batching: texts join and leave between rounds, while the others go on.

A ticket's states, and what moves it on. Every move is made by ``step``, between two rounds:

    WAITING    a slot is free           leased, both sides are told                -> PROMPT
    PROMPT     chunks of the prompt     one a step, on both sides at once          -> RUNNING
    RUNNING    each round emits tokens  until the request's text has ended         -> ENDED
    any        cancel                   the slot is given back                     -> ENDED

A step queues one round and reads the one before it, so a round is always under way while the host
works. A text that has ended is in the next round too, where nothing of it counts.

While texts run, a step feeds at most one chunk of one prompt, so a long prompt delays a round by
one chunk. Prompts are split alike in every mode and batch, from where they are fed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import perf_counter

from engines.errors import BackendError, SsdError
from runtime.course import Course
from runtime.device.api import Device
from runtime.request import Request
from runtime.round import Rounds, Side
from runtime.seats import Seats
from runtime.spec.plan import PLAIN, Fixed, Policy, RoundPlan, RoundReport, RowReport
from runtime.stats import Stats, Tally
from runtime.ticket import OnRound, OnTokens, Ticket, TicketState
from runtime.workers import mailbox as mail
from runtime.workers.api import Drafts, Verifies
from runtime.workers.entry import Entry

__all__ = ["OnRound", "RoundReport", "RowReport", "Scheduler", "Stats", "Ticket"]


DRAFT_TIMEOUT_S = 10.0
"""What an LLM gives its draft: a draft's longest job, a prompt's chunk, takes a tenth of it."""


class Scheduler:
    """Runs requests on the given lanes. ``submit`` and ``cancel`` may be called from any thread;
    ``step`` and ``run`` by one thread at a time, the one that drives the device."""

    def __init__(
        self,
        device: Device,
        mode: str,
        target: Side[Verifies],
        draft: Side[Drafts] | None,
        lookups: Side[Drafts] | None = None,
        *,
        max_batch: int,
        policy: Policy | None = None,
        on_round: OnRound | None = None,
        draft_timeout_s: float | None = None,
        prefix_reuse: bool = False,
    ) -> None:
        """``mode`` is what the pair was loaded for: "ar" without a draft. ``lookups``
        as for Rounds: without them no round passes by a draft that has an engine. ``policy`` plans
        the rounds; by default all are of that mode, with all drafts and branches that there are.
        ``on_round`` is told of each round that is read, inside ``step``. A draft that fails, or is
        at one job for ``draft_timeout_s`` while the target waits for it, is given up and decoding
        goes on plain (``runtime.lanes``); None: its errors are the pair's, and it may take its
        time. ``prefix_reuse``: cache rows of earlier texts are used again, which both workers
        must know how to."""
        self._prepares = mode == "ssd"
        self._mailbox = target.worker.mailbox
        self._rounds = Rounds(device, target, draft, lookups, draft_timeout_s=draft_timeout_s)
        planned = policy or Fixed(_plan_of(mode, draft))
        self._course = Course(self._rounds, planned, mode, target, draft, on_round)
        self._seats = Seats(self._rounds, max_batch, reuses=prefix_reuse)
        self._orders: deque[tuple[Ticket, bool]] = deque()  # (ticket, whether to cancel it)
        self._waiting: deque[Ticket] = deque()
        self._prompts: deque[Ticket] = deque()
        self._num_running = 0
        self._num_scored = 0
        self.just_done: list[Ticket] = []
        """Those that the last ``step`` has made ``done``."""
        self._committed: list[tuple[Ticket, list[int]]] = []

    @property
    def note(self) -> str | None:
        """Why the pair decodes without its draft, once it had to be given up."""
        return self._rounds.note

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return self._seats.num_free

    def submit(self, request: Request, on_tokens: OnTokens | None = None) -> Ticket:
        """Queue a request; it joins as soon as a slot is free, first come, first served.

        ``on_tokens`` is called inside ``step``, while the next round runs.
        """
        ticket = Ticket(request, on_tokens, self._mailbox.num_draft)
        self._orders.append((ticket, False))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a request between two rounds, whatever it is at. What it has emitted stays."""
        self._orders.append((ticket, True))

    def run(
        self,
        requests: Sequence[Request],
        on_tokens: Callable[[int, list[int]], None] | None = None,
    ) -> Stats:
        """Decode every request to its end; their counts together. ``on_tokens`` is called with
        (index of the request, its new tokens).

        On any error, an exception of ``on_tokens`` or ctrl-C included, everything in flight is
        cancelled, the streams are drained and the slots given back before it is raised, so the
        next run starts clean. Only an error of an engine lasts: BackendError then refuses every
        later request.
        """
        started, begin = perf_counter(), self._course.figures
        try:
            tickets = [
                self.submit(request, None if on_tokens is None else _bound(on_tokens, index))
                for index, request in enumerate(requests)
            ]
            while not all(ticket.done for ticket in tickets):
                self.step()
        except BaseException:  # ctrl-C may also have come between two steps
            self._abandon()
            raise
        total = Tally(self._mailbox.num_draft)
        for ticket in tickets:
            total.add(ticket.tally)
        decoding = [ticket.decoding_at for ticket in tickets if ticket.decoding_at]
        if decoding:
            total.prompt_s = min(decoding) - started
            total.decode = (min(decoding), self._course.figures[mail.DECIDED_AT])
        return total.stats(begin, self._course.figures, prepares=self._prepares)

    def step(self) -> bool:
        """One step: leave, join, at most one chunk of a prompt, one round. False when idle.

        Raises what an engine or ``on_tokens`` raised, after cancelling everything in flight.
        """
        self.just_done = []
        try:
            return self._step()
        except BaseException:
            self._abandon()
            raise

    def _step(self) -> bool:
        self._take_orders()
        self._admit()
        self._compact()
        self._feed()
        if self._num_running:
            self._course.launch(self._seats.rows, self._drain, scores=self._num_scored > 0)
        self._hand_on()
        if self._num_running and self._course.num_under_way > 1:
            self._take_outcomes()
            self._hand_on()
        if not self._num_running:
            self._course.drop()
        return bool(self._prompts or self._num_running or self._waiting or self._orders)

    def _drain(self) -> None:
        """Read all rounds under way."""
        while self._course.num_under_way:
            self._take_outcomes()

    def _take_orders(self) -> None:
        while self._orders:
            ticket, is_cancelled = self._orders.popleft()
            if not is_cancelled:
                self._waiting.append(ticket)
            elif ticket.state is not TicketState.ENDED:
                ticket.request.cancel()
                self._committed.append((ticket, ticket.request.commit(())))
                self._end(ticket)

    def _admit(self) -> None:
        while self._waiting and self._seats.num_free:
            ticket = self._waiting[0]
            request = ticket.request
            if self._seats.is_empty:
                self._course.drop()  # a cancel may have ended the last text of rounds under way
                self._require_sound()
                self._course.reset()
            self._seats.take(ticket)
            self._waiting.popleft()
            ticket.started_at, ticket.figures = perf_counter(), self._course.figures
            entry = Entry(
                request.prompt,
                request.params,
                limit=min(request.max_len, len(request.prompt) + request.max_tokens),
                stop_ids=frozenset(request.stop_ids),
                num_logprobs=request.num_logprobs,
                constraint=request.constraint,
                num_kept=ticket.num_cached,
            )
            self._rounds.admit(ticket.lease, entry)
            self._course.admit(ticket)
            ticket.state = TicketState.PROMPT
            self._prompts.append(ticket)
            self._run_if_fed(ticket)

    def _compact(self) -> None:
        if self._seats.num_free and not self._waiting and self._seats.compact():
            self._course.disturb()

    def _feed(self) -> None:
        if not self._prompts:
            return
        ticket = self._prompts[0]
        if self._seats.share(ticket):
            self._course.given(ticket)
            self._run_if_fed(ticket)
            if ticket.state is TicketState.RUNNING:
                return
        self._rounds.feed(ticket.lease, feeds_draft=self._course.feeds_draft(ticket))
        self._course.fed(ticket)
        ticket.chunks_left -= 1
        self._run_if_fed(ticket)

    def _run_if_fed(self, ticket: Ticket) -> None:
        if ticket.chunks_left == 0:
            self._prompts.remove(ticket)
            ticket.state = TicketState.RUNNING
            self._num_running += 1
            self._num_scored += ticket.request.num_logprobs is not None

    def _take_outcomes(self) -> None:
        """Wait for the oldest round, and let those leave whose text it has ended."""
        for ticket, taken in self._course.take():
            has_ended = ticket.request.finish_reason is not None
            if has_ended:
                self._end(ticket)
            # A stop string can make text certain without completing a token.
            if taken or has_ended or ticket.request.stop is not None:
                self._committed.append((ticket, taken))

    def _end(self, ticket: Ticket) -> None:
        """The ticket's text has ended: its slot is free for the next one."""
        if ticket.state is TicketState.WAITING:
            self._waiting.remove(ticket)
        else:
            self._seats.leave(ticket)
            if ticket.state is TicketState.PROMPT:
                self._prompts.remove(ticket)
            else:
                self._num_running -= 1
                self._num_scored -= ticket.request.num_logprobs is not None
        self._close_tally(ticket)

    def _close_tally(self, ticket: Ticket) -> None:
        ticket.state, ticket.lookups = TicketState.ENDED, None
        tally, request = ticket.tally, ticket.request
        tally.num_tokens = len(request.generated)
        tally.cut(tally.num_tokens + (request.stop_token is not None))
        if ticket.decoding_at:
            tally.prompt_s = ticket.decoding_at - ticket.started_at
            tally.decode = (ticket.decoding_at, self._course.figures[mail.DECIDED_AT])
        # One that never held a slot used nothing of the device's time.
        begun = ticket.figures if ticket.started_at else self._course.figures
        ticket.stats = tally.stats(
            begun, self._course.figures, prepares=self._prepares, is_alone=ticket.is_alone
        )

    def _hand_on(self) -> None:
        """Give the tokens just read to their callers, while the next round runs."""
        for ticket, taken in self._committed:
            if ticket.on_tokens is not None and (taken or ticket.request.stop is not None):
                ticket.on_tokens(taken)
            if ticket.state is TicketState.ENDED and not ticket.done:
                ticket.done = True
                self.just_done.append(ticket)
        self._committed.clear()

    def _require_sound(self) -> None:
        """A stream that failed skips all further work (``runtime.device.api``)."""
        try:
            self._rounds.finish()
        except SsdError as error:
            raise BackendError(
                "an earlier error stopped the engines; close them and open the bundle again "
                f"(the error was: {error})"
            ) from error

    def _abandon(self) -> None:
        """Cancel everything, free the slots, then drain the streams.

        ctrl-C may have come in the middle of a move, so nothing is taken to be consistent.
        """
        alive = dict.fromkeys(self._seats.clear())
        alive |= dict.fromkeys(self._waiting)
        while self._orders:  # another thread may be adding to them: those wait for the next step
            alive[self._orders.popleft()[0]] = None
        self._num_running = self._num_scored = 0
        for ticket in alive:
            if ticket.state is not TicketState.ENDED:
                ticket.request.cancel()
                ticket.slot = None
                self._close_tally(ticket)
        for ticket in (*alive, *(ticket for ticket, _ in self._committed)):
            ticket.done = True
        for queue in (self._waiting, self._prompts, self._committed):
            queue.clear()
        self._course.drop()
        with suppress(SsdError):  # what stopped a stream is being raised, or is at the next request
            self._rounds.finish()


def _plan_of(mode: str, draft: Side[Drafts] | None) -> RoundPlan:
    """All that a pair was loaded for."""
    return PLAIN if draft is None or mode == "ar" else replace(draft.worker.plan, mode=mode)


def _bound(on_tokens: Callable[[int, list[int]], None], index: int) -> OnTokens:
    return lambda tokens: on_tokens(index, tokens)
