"""The two sides' streams, how the host waits for them, and what it does without the draft.

The draft is help and no more: where it fails, or does not answer, the target goes on alone with
plain rounds, from where it stands. By the coupled rule no token is another.

    the draft raises    the target, which waits for its proposals, is stopped by the same error
    the draft hangs     the target waits, and so does the host
    then                the target's stream is closed and a new one made. What the old one had not
                        run is queued again, but for rounds: those are planned anew
    the target raises   nothing helps: the error is raised, now and at every later call

A side is late where somebody waits for it and it has been at one and the same job for the time
limit; a long queue is not lateness. A draft that hangs keeps its thread, and its stream is left
alone: closing it would hang, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from logging import getLogger
from weakref import WeakMethod

from engines.errors import SsdError
from runtime.device.api import Device, Event, Stream
from runtime.journal import Job, Patience
from runtime.side import Side
from runtime.workers.api import Drafts, Verifies

_logger = getLogger(__name__)


class Lanes:
    """See the module's table. ``note`` says in one line why the draft is gone, if it is."""

    def __init__(
        self,
        device: Device,
        target: Side[Verifies],
        draft: Side[Drafts] | None,
        timeout_s: float | None,
        salvage: Callable[[list[Job]], None],
    ) -> None:
        """``timeout_s`` None: an error of the draft is one of the pair, and it may take its time.
        ``salvage`` is called where the draft was given up, with the jobs that the target's old
        stream had not done; the new one is in place then. It is a bound method of these lanes'
        owner, held weakly: in a cycle engines would outlive their closing. TypeError for others."""
        self.target = target
        self.draft = draft
        self.note: str | None = None
        self._device = device
        self._salvage = WeakMethod(salvage)
        self._patience = None if draft is None or timeout_s is None else Patience(timeout_s)
        self._idle = device.create_event("idle")
        # Of the last two rounds, the older ones' events being recorded anew: what the target waits
        # for, and what must be reached before.
        self._begun: deque[tuple[Event, Event] | None] = deque(maxlen=2)
        # Why the draft is being given up: ctrl-C may come in the middle, `finish` ends it then.
        self._leaving: tuple[str, bool] | None = None

    def begin_round(self, proposed: Event | None, behind: Event) -> None:
        """A round is about to be queued, which waits for the draft's ``proposed``, if given: that
        comes after ``behind``, an event of the target's own."""
        if proposed is not None:
            self.target.stream.wait(proposed)
        self._begun.append(None if proposed is None else (proposed, behind))

    def wait(self, event: Event) -> bool:
        """Block the host until an event of the target is reached; False where the draft was given
        up meanwhile: the event's mark is void then. Raises the target's own error."""
        if self._patience is None:
            return event.sync()
        try:
            while not event.sync(self._patience.timeout_s / 2):
                if self._is_target_held_up and self._patience.is_over(self._draft.journal):
                    self._give_up(self._hang, hangs=True)
                    return False
        except SsdError as error:
            self._require_target(error)
            self._give_up(f"the draft failed ({error})")
            return False
        return True

    def finish(self) -> None:
        """Wait until both sides are idle. Raises the target's error, and the draft's where an
        error of the draft is one of the pair."""
        if self._leaving is not None:
            self._give_up(*self._leaving)
        if self._patience is None:
            try:
                self.target.stream.sync()
            finally:
                if self.draft is not None:
                    self.draft.stream.sync()
            return
        while not self.wait(self.target.stream.record(self._idle)):
            pass
        if self._patience is not None:
            self._finish_draft()

    def _finish_draft(self) -> None:
        """Block the host until the draft is idle, or given up. The target is idle and sound."""
        assert self._patience is not None
        idle = self._draft.stream.record(self._idle)
        try:
            while not idle.sync(self._patience.timeout_s / 2):
                if self._patience.is_over(self._draft.journal):
                    self._give_up(self._hang, hangs=True)
                    return
        except SsdError as error:
            self._give_up(f"the draft failed ({error})")

    def is_reached(self, event: Event) -> bool:
        """Whether an event of the draft is reached, or never will be; does not wait. Gives the
        draft up where it hangs."""
        if event.is_done:
            return True
        if self._patience is not None and self._patience.is_over(self._draft.journal):
            self._give_up(self._hang, hangs=True)
            return True
        return False

    @property
    def _draft(self) -> Side[Drafts]:
        assert self.draft is not None
        return self.draft

    @property
    def _hang(self) -> str:
        assert self._patience is not None
        job = self._draft.journal.oldest
        at = "" if job is None else f" at {job.label!r}"
        return f"the draft has not answered for {self._patience.timeout_s:g} s{at}"

    @property
    def _awaited(self) -> list[tuple[Event, Event]]:
        return [pair for pair in self._begun if pair is not None]

    @property
    def _is_target_held_up(self) -> bool:
        """Whether it stands at a wait for the draft, which has all that it needs."""
        return any(behind.is_done and not proposed.is_done for proposed, behind in self._awaited)

    def _require_target(self, error: SsdError) -> None:
        """Raise ``error``, which the target's stream has, unless it came from the draft: by a mark
        that the target waited for, behind one of its own that is sound."""
        for proposed, behind in self._awaited:
            if _has_failed(behind):
                break
            if _has_failed(proposed):
                return
        raise error

    def _give_up(self, why: str, hangs: bool = False) -> None:
        """Go on without the draft, on a new stream of the target's. Left in the middle it can be
        begun again."""
        draft, target = self.draft, self.target
        self._leaving = (why, hangs)
        if draft is not None and not hangs:
            draft.stream.close()
        try:
            target.stream.close()
        except BaseException:  # what it runs may run on: no other may begin beside it
            self._leaving = None
            raise
        jobs = target.journal.undone()
        target.stream = self._reopened()
        self.draft = self._patience = None
        self._begun.clear()
        self.note = f"{why}; decoding goes on without it, one token a round"
        _logger.warning("%s", self.note)
        salvage = self._salvage()
        assert salvage is not None, "the owner of these lanes is gone, and it drives them"
        salvage(jobs)
        self._leaving = None

    def _reopened(self) -> Stream:
        side = self.target
        return side.reopen() if side.reopen else self._device.create_stream(side.stream.name)


def _has_failed(event: Event) -> bool:
    """Of an event that is reached, or whose stream cannot have failed where it is not."""
    try:
        event.sync(0.0)
    except SsdError:
        return True
    return False
