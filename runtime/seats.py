"""Which text has which slot, and behind whose rows it begins.

Slots are leased from 0 on, and a call covers them up to the last running one. A slot in between
that nobody holds is a dummy in the call; it is filled by the next text that waits, or else by the
text of the last slot (compaction: its cache rows are copied), which makes the call smaller.

A free slot keeps the rows of its last text, and a text that begins alike goes on behind them
(``runtime.kv.slots``); or behind those of one that still runs, looked for when its own turn to be
fed has come: so of one prompt asked for several times all but the first wait for its rows. Rows are
kept of texts that have ended and of cancelled ones, as far as the host has read of them; not of an
interrupted run, nor of texts that ran when a draft was given up.
"""

from __future__ import annotations

from runtime.kv.kept import as_tokens, num_usable
from runtime.kv.slots import SlotPool
from runtime.round import Rounds
from runtime.ticket import Ticket, TicketState


class Seats:
    """Bookkeeping of the scheduler's thread; what it decides is queued on both sides.

    ``rows`` are the tickets by slot.
    """

    def __init__(self, rounds: Rounds, num_slots: int, *, reuses: bool) -> None:
        """``reuses``: rows of earlier texts are used again."""
        self.rows: list[Ticket | None] = [None] * num_slots
        self.pool = SlotPool(num_slots)
        self._rounds = rounds
        self._reuses = reuses
        self._has_lost_draft = False

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return self.pool.num_free

    @property
    def is_empty(self) -> bool:
        return self.pool.num_free == len(self.rows)

    def take(self, ticket: Ticket) -> None:
        """Give a ticket a slot that is free. With the first one, calls become small again."""
        if self._rounds.note is not None and not self._has_lost_draft:
            self._has_lost_draft = True
            self.pool.forget()
        request, is_first, keeps = ticket.request, self.is_empty, self.pool.keeps
        seat = self.pool.seat(as_tokens(request.prompt), request.cache_salt)
        if is_first:
            self._rounds.reset(len(request.prompt) if keeps else None)
        for shift in seat.shifts:
            self._rounds.shift(shift)
        ticket.slot = seat.slot
        ticket.begin_behind(seat.num_kept, seat.num_held)
        self.rows[seat.slot.index] = ticket
        held = [each for each in self.rows if each is not None]
        for each in held:
            each.is_alone &= len(held) == 1

    def share(self, ticket: Ticket) -> bool:
        """Let a text that was not fed yet begin behind the rows of one that has a slot; False where
        none has more for it than its own slot."""
        if not self._reuses or ticket.num_fed > ticket.num_cached:
            return False
        prompt, salt = as_tokens(ticket.request.prompt), ticket.request.cache_salt
        best, most = None, ticket.num_cached
        for other in self.rows:
            if other is None or other is ticket or other.request.cache_salt != salt:
                continue
            num = num_usable(prompt, as_tokens(other.written))
            if num > most and self.pool.is_sound(other.lease):
                best, most = other, num
        if best is None:
            return False
        self._rounds.share(best.lease, ticket.lease, most)
        ticket.begin_behind(most, min(most, best.num_held))
        return True

    def compact(self) -> bool:
        """Let the last texts move into the slots that nobody holds; whether one did."""
        num_held = len(self.rows) - self.pool.num_free
        moving = [ticket for ticket in self.rows[num_held:] if ticket is not None]
        for ticket in reversed(moving):
            old = ticket.lease
            new = ticket.slot = self.pool.move(old)
            self._rounds.move(old, new)
            self.rows[new.index], self.rows[old.index] = ticket, None
        return bool(moving)

    def leave(self, ticket: Ticket) -> None:
        """The ticket's text has ended; its slot is free, and keeps what it holds."""
        assert ticket.state in (TicketState.PROMPT, TicketState.RUNNING)
        self.pool.check(ticket.lease)
        kept = ticket.kept if self._reuses else None
        self._rounds.retire(ticket.lease, 0 if kept is None else len(kept.tokens))
        self.rows[ticket.lease.index] = None
        self.pool.release(ticket.lease, kept)
        ticket.slot = None

    def clear(self) -> list[Ticket]:
        """Take all slots back, and forget what they hold; returns who had them. Nothing is queued:
        nothing is taken to be consistent."""
        held = [ticket for ticket in self.rows if ticket is not None]
        self.rows[:] = [None] * len(self.rows)
        self.pool.release_all()
        return held
