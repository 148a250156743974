"""A submitted request on its way, and the rounds that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from runtime.kv.kept import Kept, as_tokens
from runtime.kv.slots import SlotRef
from runtime.request import Request
from runtime.sampling.logprobs import TokenLogprobs
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import ProposalKind
from runtime.spec.lookup import Looked, LookupChain
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
        self.num_cached = 0  # positions of the prompt whose rows were there already
        self.num_fed = 0  # positions of the prompt that the target was given
        self.num_held = 0  # positions of the text that the draft's trunk holds, at least
        self.feeds_draft = True  # whether the policy wants the draft to read the prompt
        self.tally = Tally(num_draft)
        self.last_kind: int | None = None
        self.is_prepared = False  # the last round judged was one of ssd
        self.lookups: LookupChain | None = None  # where the policy watches what they would yield
        self.is_alone = True  # no other held a slot meanwhile
        self.started_at = self.decoding_at = 0.0
        self.figures: Sequence[float] = NO_FIGURES
        self.stats: Stats = self.tally.stats(NO_FIGURES, NO_FIGURES, prepares=False)

    @property
    def lease(self) -> SlotRef:
        """The slot of a ticket that has one."""
        assert self.slot is not None
        return self.slot

    def begin_behind(self, num_cached: int, num_held: int) -> None:
        """So many positions of the prompt have rows already, ``num_held`` of them on the draft's
        side; nothing was fed yet."""
        self.num_cached = self.num_fed = self.tally.num_cached = num_cached
        self.num_held = num_held
        self.chunks_left = num_chunks(len(self.request.prompt) - 1 - num_cached)

    @property
    def written(self) -> list[int]:
        """The tokens whose rows the target has written, or will have behind all that is queued; the
        last one of a running text has none yet."""
        request = self.request
        if self.state is not TicketState.RUNNING:
            return list(request.prompt[: self.num_fed])
        num = len(request.prompt) + request.num_emitted - 1
        return [*request.prompt, *request.generated][:num]

    @property
    def kept(self) -> Kept:
        """What the slot holds when this text leaves it, but where a dummy may lie."""
        tokens = as_tokens(self.written[: self.request.max_len - 2])
        return Kept(tokens, self.request.cache_salt, min(self.num_held, len(tokens)))

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
        if flight.ran.mode != "ar" and flight.ran.drafter is not Drafter.LOOKUP:
            self.num_held = len(request.prompt) + len(request.generated)
        emitted = cells[mail.EMITTED : mail.EMITTED + accepted + 1]
        looked: tuple[Looked, ...] = ()
        if self.lookups is not None:
            if Kind(kind).source is ProposalKind.LOOKUP:
                looked = self.lookups.judged(num_drafted, accepted, emitted)
            else:
                looked = self.lookups.settled(emitted)
        taken = request.commit(emitted, logprobs)
        num_emitted = request.num_emitted - num_before
        self.tally.round(flight.ran.mode, kind, before, num_drafted, accepted, num_emitted)
        self.last_kind, self.is_prepared = kind, flight.ran.mode == "ssd"
        rank = cells[rank_at] - 1
        return taken, RowReport(
            slot=index,
            kind=Kind(kind).source,
            num_drafted=num_drafted,
            accepted=accepted,
            hit=None if before is None else Kind(kind).was_prepared,
            num_emitted=num_emitted,
            rank=None if before is None or rank < 0 else rank,
            is_behind=flight.ran.mode != flight.asked.mode,
            looked=looked,
        )


@dataclass(frozen=True, slots=True)
class Flight:
    """A round that was launched and is not read yet.

    rows          the texts that ran when it was launched, with their rows
    asked, ran    the policy's plan, and what could be done of it
    is_continued  it verifies what the round before left: whether that had hit is known by it
    is_steady     nothing but the round before lies between its start and that one's
    is_timed      nothing but decoding does: rounds, a change of mode, a draft that catches up
    """

    number: int
    rows: tuple[tuple[int, Ticket], ...]
    asked: RoundPlan
    ran: RoundPlan
    is_continued: bool
    is_steady: bool
    is_timed: bool
