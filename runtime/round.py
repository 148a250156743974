"""Rounds of decoding as launches on streams; and what happens between two of them.

A round is queued, decided and read, in this order, and two may be under way:

    launch()      work is queued on the streams; nothing blocks
    (decided)     the target has judged: the reading is written
    outcomes()    the host has read it

So the host queues a round before it reads the last one, and the streams never wait for the host.
What the host finds out from a reading takes effect two rounds later; what both workers see for
themselves (a stop token, a limit) at once. Readings are in two places, taken in turn.

The lanes of an ``ssd`` round. ``sd`` drafts between two verifications instead; in ``ar`` the
draft rests, and the proposals and messages are left alone:

    target | wait proposed | begun | verify .............. | decided | score
    draft  |           wait begun | commit, root, fork, .. | wait decided | adopt | proposed

``commit`` (moving a hit's cache rows) comes after ``proposed``, off the critical path, and so does
``score`` (log-probabilities) after ``decided``. The draft waits for ``begun``, since on a host both
share one interpreter: what prepares the target's call goes first, and the draft's work beside it.

Rows join, leave and move between rounds, by launches that both streams get in the same order:

    admit, feed, retire,   each side changes what it alone knows; no event is needed. A proposal
    shift, share           to a slot's last holder is told from one to its next by the lease
    move                   the draft also moves the row's proposal, so ``proposed`` is recorded anew

Where the draft fails the target goes on alone (``runtime.lanes``).

Lookups alone are work of the target's stream, in front of a verification and behind it: no stream
waits for another. The draft rests meanwhile, and the lookups while it works.

While the draft rests it is not fed: after a rest, and where the mode changes, it is told the texts
(``resume``; lookups are, too), and feeds what it lacks (``catch_up``) while the target goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from engines.errors import DeviceError
from runtime.device.api import Device, Event
from runtime.journal import Job
from runtime.kv.kept import Shift
from runtime.kv.slots import SlotRef
from runtime.lanes import Lanes
from runtime.side import Side, draft_side, target_side
from runtime.spec.drafter import Drafter
from runtime.spec.plan import MODES, RoundPlan
from runtime.workers.api import Drafts, Verifies
from runtime.workers.entry import Entry, Resumed
from runtime.workers.mailbox import NUM_READINGS, Reading

__all__ = ["MODES", "Rounds", "Side", "draft_side", "target_side"]


# One more than rounds under way: the round before may still wait for its own.
_NUM_EVENTS = NUM_READINGS + 1


@dataclass(slots=True)
class _Flight:
    """A round that was launched. ``is_lost``: it did not run, and the draft is gone."""

    number: int
    is_scored: bool
    is_lost: bool = False

    @property
    def place(self) -> int:
        """Where its reading will be."""
        return self.number % NUM_READINGS


class Rounds:
    """Runs rounds, and what the host asks for between them."""

    def __init__(
        self,
        device: Device,
        target: Side[Verifies],
        draft: Side[Drafts] | None,
        lookups: Side[Drafts] | None = None,
        *,
        draft_timeout_s: float | None = None,
    ) -> None:
        """``lookups``: who looks up where there is a draft that can be passed by, on the target's
        stream. For ``draft_timeout_s`` see ``runtime.lanes``."""
        self._device = device
        self._lanes = Lanes(device, target, draft, draft_timeout_s, self._salvage)
        self._target = target
        self._lookups = lookups
        numbers = range(_NUM_EVENTS)
        self._begun: list[Event] = [device.create_event(f"begun {i}") for i in numbers]
        self._decided: list[Event] = [device.create_event(f"decided {i}") for i in numbers]
        self._scored: list[Event] = [device.create_event(f"scored {i}") for i in numbers]
        self._proposed: list[Event] = [device.create_event(f"proposed {i}") for i in numbers]
        self._fed: Event = device.create_event("fed")
        self._caught_up: Event = device.create_event("caught up")
        # Behind it a round of lookups is over, which uses the messages of drafting.
        self._looked_up: Event = device.create_event("looked up")
        # The draft's last event: behind it the messages to it are read, those of it written.
        self._last_proposed = self._proposed[0]
        self._num_proposed = 0  # drafted tokens that an ssd round has left for the next one
        self._is_resting = True
        self._next = 0
        self._dropped: Event | None = None  # behind the rounds that were left unread
        self._flights: deque[_Flight] = deque()

    @property
    def has_proposals(self) -> bool:
        """Whether the last round launched leaves proposals, for a round of the same mode."""
        return self._num_proposed > 0

    @property
    def looks_up(self) -> bool:
        """Whether there may be rounds of lookups alone."""
        draft = self._lanes.draft
        copies = draft is not None and draft.worker.plan.drafter is Drafter.LOOKUP
        return copies or self._lookups is not None

    @property
    def note(self) -> str | None:
        """Why there is no draft any more, where there was one."""
        return self._lanes.note

    @property
    def _sides(self) -> list[Side[Verifies] | Side[Drafts]]:
        """All that know the texts, those of the target's stream first."""
        others = (self._lookups, self._lanes.draft)
        return [self._target, *(side for side in others if side is not None)]

    def reset(self, keeps: int | None = None) -> None:
        """Queue the forgetting of every text; the caches go back to their fewest rows, or to those
        that hold ``keeps`` positions, where free slots keep something."""
        self._num_proposed = 0
        for side in self._sides:
            side.launch(partial(side.worker.reset, keeps), "reset")
        self._target.stream.record(self._fed)  # that of a lost stream could not be waited for

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """Queue a text's joining, on both sides."""
        for side in self._sides:
            side.launch(partial(side.worker.admit, slot, entry), "admit")

    def feed(self, slot: SlotRef, *, feeds_draft: bool = True) -> None:
        """Queue the next chunk of a slot's prompt, on both sides at once unless the draft rests.

        Waits until the target has done the chunk before, so that a long prompt that nobody
        wants any more is soon off the streams.
        """
        while not self._lanes.wait(self._fed):
            pass
        for side in self._sides:
            if feeds_draft or side is not self._lanes.draft:
                side.launch(partial(side.worker.feed, slot), "prompt")
        self._target.stream.record(self._fed)

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:
        """Queue the end of a slot's text, on both sides; its first positions stay."""
        for side in self._sides:
            side.launch(partial(side.worker.retire, slot, num_kept), "retire")

    def shift(self, shift: Shift) -> None:
        """Queue that what a free slot keeps goes to another, on both sides."""
        for side in self._sides:
            side.launch(partial(side.worker.shift, shift), "shift")

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """Queue that a text gets the rows of another that begins as it does, on both sides."""
        for side in self._sides:
            share = partial(side.worker.share, source, destination, num_positions)
            side.launch(share, "share")

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """Queue a text's move to a free slot, on both sides."""
        draft = self._lanes.draft
        if draft is not None:
            draft.stream.wait(self._looked_up)
        for side in self._sides:
            move = partial(side.worker.move, source, destination)
            side.launch(move, "move", sends=side is draft)
        if draft is not None:
            self._record_proposed(draft, None if self._is_resting else self._next)

    def resume(self, texts: Sequence[Resumed]) -> None:
        """Queue a return from a rest or from another mode, of draft and lookups. No round may be
        under way that drafts; the next one begins without proposals."""
        self._num_proposed = 0
        for side in (self._lookups, self._lanes.draft):
            if side is not None:
                side.launch(partial(side.worker.resume, texts), "resume")

    def catch_up(self, slot: SlotRef) -> None:
        """Queue the feeding of the next chunk that the draft lacks."""
        if (draft := self._lanes.draft) is not None:
            draft.launch(partial(draft.worker.catch_up, slot), "catch up")
            draft.stream.record(self._caught_up)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that ``catch_up`` has queued is done; does not wait."""
        return self._lanes.is_reached(self._caught_up)

    def launch(self, plan: RoundPlan, *, scores: bool = False) -> None:
        """Queue one round; ``scores`` where a row asks for log-probabilities.

        Raises DeviceError where two rounds are under way already, and for a mode that needs a
        draft where there is none.
        """
        if len(self._flights) == NUM_READINGS:
            raise DeviceError(f"{NUM_READINGS} rounds are under way; read the first one's outcomes")
        if self._dropped is not None:
            # Where they are held up the target is, too: a later round would be blamed for it.
            self._lanes.wait(self._dropped)
            self._dropped = None
        draft, number = self._lanes.draft, self._next
        before = self._decided[_at(number - 1)]
        is_plain = plan.mode == "ar" or (draft is None and self.note is not None)
        lookups = self._lookups if plan.drafter is Drafter.LOOKUP else None
        if is_plain or lookups is not None:
            if draft is not None and not self._is_resting:
                self._record_proposed(draft, None)
            self._num_proposed, self._is_resting = 0, True
            if is_plain or lookups is None:
                self._lanes.begin_round(None, before)
                self._verify(number, 0, scores=scores, sends=False)
            else:
                self._look_up(lookups, plan, before, scores=scores)
            return
        if draft is None:
            raise DeviceError(f"mode {plan.mode} needs a draft, and this pair has none")
        if self._is_resting:
            draft.stream.wait(self._looked_up)
        num_drafted, self._is_resting = self._num_proposed, False
        if plan.mode == "sd":
            draft.launch(partial(draft.worker.draft, plan), "draft", sends=True)
            self._record_proposed(draft, number)
            num_drafted = plan.num_draft
        self._lanes.begin_round(self._last_proposed, before)
        if plan.mode == "ssd":
            self._target.stream.record(self._begun[_at(number)])
        self._verify(number, num_drafted, scores=scores, sends=True)
        if plan.mode == "ssd":
            draft.stream.wait(self._begun[_at(number)])
            draft.launch(partial(draft.worker.prepare, plan), "prepare")
        draft.stream.wait(self._decided[_at(number)])
        if plan.mode == "sd":
            draft.launch(partial(draft.worker.follow, plan), "follow", takes=True)
            self._record_proposed(draft, number + 1)
            self._num_proposed = 0
        else:
            draft.launch(partial(draft.worker.adopt, plan), "adopt", takes=True, sends=True)
            self._record_proposed(draft, number + 1)
            draft.put_off(draft.worker.commit, "commit")
            self._num_proposed = plan.num_draft

    def _look_up(
        self, lookups: Side[Drafts], plan: RoundPlan, before: Event, *, scores: bool
    ) -> None:
        """Queue a round of lookups on the target's stream."""
        self._lanes.begin_round(self._last_proposed, before)
        lookups.launch(partial(lookups.worker.draft, plan), "look up", sends=True)
        self._verify(self._next, plan.num_draft, scores=scores, sends=True)
        lookups.launch(partial(lookups.worker.follow, plan), "follow", takes=True)
        self._target.stream.record(self._looked_up)

    def _verify(self, number: int, num_drafted: int, *, scores: bool, sends: bool) -> None:
        target, flight = self._target, _Flight(number, scores)
        readings = target.worker.mailbox.readings[flight.place]
        target.launch(
            partial(target.worker.verify, num_drafted, flight.place, sends=sends),
            "verify",
            takes=num_drafted > 0,
            sends=sends,
            also_writes=readings,
            round_number=number,
        )
        target.stream.record(self._decided[_at(number)])
        if scores:
            self._score(flight)
        self._next += 1
        self._flights.append(flight)

    def _score(self, flight: _Flight) -> None:
        self._target.launch(
            partial(self._target.worker.score, flight.place),
            "score",
            also_reads=self._target.worker.mailbox.readings[flight.place],
            round_number=flight.number,
        )
        self._target.stream.record(self._scored[_at(flight.number)])

    def _record_proposed(self, draft: Side[Drafts], number: int | None) -> None:
        """What the draft has for round ``number`` is there; for any later one where it rests, by an
        event that is recorded once."""
        event = None if number is None else self._proposed[_at(number)]
        self._last_proposed = draft.stream.record(event)

    def outcomes(self) -> Reading | None:
        """Wait until the oldest round under way is decided, and read it. A row that was not
        judged is marked SKIP. None where the round did not run, since the draft was given up."""
        flight = self._flights[0]
        event = (self._scored if flight.is_scored else self._decided)[_at(flight.number)]
        while not (flight.is_lost or self._lanes.wait(event)):
            pass
        self._flights.popleft()
        if flight.is_lost:
            return None
        mailbox = self._target.worker.mailbox
        self._device.host_access(reads=mailbox.readings[flight.place], label="read outcomes")
        return mailbox.read(flight.place)

    def drop(self) -> None:
        """Leave the rounds under way unread: they concern nobody any more. Waits for nothing."""
        if self._flights:
            self._dropped = self._decided[_at(self._flights[-1].number)]
        self._flights.clear()

    def finish(self) -> None:
        """Wait until both sides are idle, whatever is under way, and leave it unread."""
        self._flights.clear()
        self._dropped = None
        self._lanes.finish()

    def _salvage(self, jobs: list[Job]) -> None:
        """The target has a new stream, and the draft is gone: queue what was not done, and leave
        out the rounds that were not judged."""
        self._num_proposed, self._lookups = 0, None
        self._dropped = None  # of the old stream: nothing holds up the new one
        unjudged = {job.round_number for job in jobs if job.label == "verify"}
        for job in jobs:
            if job.round_number is None or job.round_number not in unjudged:
                self._target.journal.launch(self._target.stream, job)
        self._target.stream.record(self._fed)
        for flight in self._flights:
            flight.is_lost = flight.number in unjudged
            if not flight.is_lost:
                events = self._scored if flight.is_scored else self._decided
                self._target.stream.record(events[_at(flight.number)])


def _at(number: int) -> int:
    """Which event of each kind is that round's."""
    return number % _NUM_EVENTS
