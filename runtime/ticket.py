"""A submitted request on its way, and what is told of each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from runtime.kv.slots import SlotRef
from runtime.request import Request
from runtime.spec.fallback import ProposalKind
from runtime.stats import NO_FIGURES, Stats, Tally
from runtime.workers.prefill import num_chunks

OnTokens = Callable[[list[int]], None]
"""Called with a request's tokens that have just become certain."""


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
        self.tally = Tally(num_draft)
        self.last_kind: int | None = None
        self.is_alone = True  # no other held a slot meanwhile
        self.started_at = self.decoding_at = 0.0
        self.figures: Sequence[float] = NO_FIGURES
        self.stats: Stats = self.tally.stats(NO_FIGURES, NO_FIGURES, prepares=False)

    @property
    def lease(self) -> SlotRef:
        """The slot of a ticket that has one."""
        assert self.slot is not None
        return self.slot


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row of a decided round. ``kind``: where its drafts came from. ``hit``: whether the
    outcome before had been prepared; None in a row's first round."""

    slot: int
    kind: ProposalKind
    num_drafted: int
    accepted: int
    hit: bool | None


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A decided round, and the rows that it judged."""

    number: int
    rows: tuple[RowReport, ...]


OnRound = Callable[[RoundReport], None]
"""Called with each decided round."""
