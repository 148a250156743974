"""A side of a pair: a worker, its stream, and the messages it takes and sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from runtime.device.api import Access, Buffer, Stream
from runtime.journal import Job, Journal
from runtime.workers.api import Drafts, Verifies

Worker = TypeVar("Worker", Verifies, Drafts)
Reopen = Callable[[], Stream]


@dataclass(slots=True)
class Side(Generic[Worker]):
    """``inbox`` and ``outbox`` are the messages from and to the other side. ``reopen`` makes a
    stream like the one that was closed, of the same name."""

    stream: Stream
    worker: Worker
    caches: Buffer
    inbox: tuple[Buffer, ...]
    outbox: tuple[Buffer, ...]
    reopen: Reopen | None = None
    journal: Journal = field(default_factory=Journal)
    _due: tuple[Callable[[], None], str] | None = field(default=None, init=False)

    def launch(
        self,
        work: Callable[[], None],
        label: str,
        *,
        takes: bool = False,
        sends: bool = False,
        also_reads: tuple[Access, ...] = (),
        also_writes: tuple[Access, ...] = (),
        round_number: int | None = None,
    ) -> None:
        """Queue ``work``, which uses the worker's own caches, reads the other side's message if
        it ``takes`` and writes this side's if it ``sends``."""
        if self._due is not None:
            due, self._due = self._due, None
            self.launch(*due)
        reads = (self.caches, *(self.inbox if takes else ()), *also_reads)
        writes = (self.caches, *(self.outbox if sends else ()), *also_writes)
        self.journal.launch(self.stream, Job(work, reads, writes, label, round_number))

    def put_off(self, work: Callable[[], None], label: str) -> None:
        """Queue ``work`` in front of what is launched next, behind the waits that are queued until
        then. It takes and sends nothing."""
        self._due = work, label


def target_side(
    stream: Stream, worker: Verifies, *, reopen: Reopen | None = None
) -> Side[Verifies]:
    """The target takes proposals and sends outcomes."""
    mailbox = worker.mailbox
    proposals = (mailbox.proposals, mailbox.draft_figures)
    outcomes = (mailbox.outcomes, mailbox.figures)
    return Side(stream, worker, worker.session.kv_buffer, proposals, outcomes, reopen)


def draft_side(stream: Stream, worker: Drafts) -> Side[Drafts]:
    """The draft takes outcomes and sends proposals."""
    mailbox = worker.mailbox
    proposals = (mailbox.proposals, mailbox.draft_figures)
    outcomes = (mailbox.outcomes, mailbox.figures)
    return Side(stream, worker, worker.session.kv_buffer, outcomes, proposals)
