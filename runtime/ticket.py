"""A submitted request on its way, and the rounds that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from runtime.kv.slots import SlotRef
from runtime.request import Request
from runtime.sampling.logprobs import TokenLogprobs
from runtime.spec.plan import RoundPlan, RoundReport, RowReport
from runtime.stats import NO_FIGURES, Stats, Tally
from runtime.workers import mailbox as mail
from runtime.workers.entry import Resumed
from runtime.workers.mailbox import Kind
from runtime.workers.prefill import num_chunks

__all__ = ["Flight", "OnRound", "OnTokens", "RoundReport", "RowReport", "Ticket", "TicketState"]

OnTokens = Callable[[list[int]], None]
"""Called with a request's tokens that have just become certain."""
OnRound = Callable[[RoundReport], None]
"""Called with each round that was read."""


class TicketState(Enum):
    """See the table of ``runtime.scheduler``."""

    WAITING = auto()
    PROMPT = auto()
    RUNNING = auto()
    ENDED = auto()


class Ticket:
    """A submitted request. ``request``, ``done`` and ``stats`` are the caller's to read, the first
    and the last once it is ``done``; all else is the scheduler's.

    done   the text has ended and all of it has been handed on
    stats  counts and times of this request
    """

    def __init__(self, request: Request, on_tokens: OnTokens | None, num_draft: int) -> None:
        self.request = request
        self.done = False
        self.on_tokens = on_tokens
        self.state = TicketState.WAITING
        self.slot: SlotRef | None = None
        self.chunks_left = num_chunks(len(request.prompt) - 1)
        self.num_fed = 0  # positions of the prompt that the target was given
        self.num_held = 0  # positions of the text that the draft's trunk holds, at least
        self.tally = Tally(num_draft)
        self.last_kind: int | None = None
        self.is_prepared = False  # the last round judged was one of ssd
        self.is_alone = True  # no other held a slot meanwhile
        self.started_at = self.decoding_at = 0.0
        self.figures: Sequence[float] = NO_FIGURES
        self.stats: Stats = self.tally.stats(NO_FIGURES, NO_FIGURES, prepares=False)

    @property
    def lease(self) -> SlotRef:
        """The slot of a ticket that has one."""
        assert self.slot is not None
        return self.slot

    @property
    def resumed(self) -> Resumed:
        """The text as the draft has to know it after a rest, of a ticket that has a slot."""
        request, is_running = self.request, self.state is TicketState.RUNNING
        tokens = [*request.prompt, *request.generated]
        return Resumed(
            self.lease, tokens, len(tokens) - 1 if is_running else self.num_fed, is_running
        )

    def take(
        self,
        flight: Flight,
        index: int,
        cells: list[int],
        logprobs: list[TokenLogprobs],
        rank_at: int,
    ) -> tuple[list[int], RowReport]:
        """Take in what a round decided for this running text, as row ``index``: what became
        certain by it, and what there is to tell of it."""
        kind, num_drafted, accepted = cells[mail.KIND], cells[mail.COUNT], cells[mail.ACCEPTED]
        request = self.request
        before = self.last_kind if flight.is_continued and self.is_prepared else None
        num_before = request.num_emitted
        if flight.ran.mode != "ar":
            self.num_held = len(request.prompt) + len(request.generated)
        taken = request.commit(cells[mail.EMITTED : mail.EMITTED + accepted + 1], logprobs)
        num_emitted = request.num_emitted - num_before
        self.tally.round(flight.ran.mode, kind, before, num_drafted, accepted, num_emitted)
        self.last_kind, self.is_prepared = kind, flight.ran.mode == "ssd"
        rank = cells[rank_at] - 1
        return taken, RowReport(
            slot=index,
            kind=Kind(kind).source,
            num_drafted=num_drafted,
            accepted=accepted,
            hit=None if before is None else kind == Kind.HIT,
            num_emitted=num_emitted,
            rank=None if before is None or rank < 0 else rank,
            is_behind=flight.ran.mode != flight.asked.mode,
        )


@dataclass(frozen=True, slots=True)
class Flight:
    """A round that was launched and is not read yet.

    rows          the texts that ran when it was launched, with their rows
    asked, ran    the policy's plan, and what could be done of it
    is_continued  it verifies what the round before left: whether that had hit is known by it
    is_steady     nothing but the round before lies between its start and that one's
    """

    number: int
    rows: tuple[tuple[int, Ticket], ...]
    asked: RoundPlan
    ran: RoundPlan
    is_continued: bool
    is_steady: bool
