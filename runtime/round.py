"""One round of decoding in each mode, as launches on streams; and what happens between rounds.

States of a round, with what moves it on:

    IDLE       launch()      work is queued on the streams; nothing blocks
    LAUNCHED   decided.sync  the target has judged: outcomes are readable
    DECIDED    outcomes()    the host reads them; callers may see what it commits
    IDLE       ...           the next round

The lanes of an ``ssd`` round (``sd`` drafts between two verifications instead; ``ar`` has no
draft):

    target | wait proposed | verify .................. | decided | score
    draft  |               | root, fork, K branch steps | wait decided | adopt | proposed | commit

``commit`` (moving a hit's cache rows) comes after ``proposed``, off the critical path, and so does
``score`` (log-probabilities) after ``decided``.

Rows join, leave and move between rounds, by launches that both streams get in the same order:

    admit, feed, retire    each side changes what it alone knows; no event is needed. A proposal
                           to a slot's last holder is told from one to its next by the lease
    move                   the draft also moves the row's proposal, so ``proposed`` is recorded anew
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Generic, TypeVar

from engines.errors import DeviceError
from runtime.device.api import Buffer, Device, Event, Stream
from runtime.kv.slots import SlotRef
from runtime.sampling.logprobs import TokenLogprobs
from runtime.workers.draft import DraftWorker
from runtime.workers.entry import Entry
from runtime.workers.target import TargetWorker

MODES = ("ar", "sd", "ssd")
Worker = TypeVar("Worker", TargetWorker, DraftWorker)


class State(Enum):
    """Where a round stands; see the module's table."""

    IDLE = auto()
    LAUNCHED = auto()
    DECIDED = auto()


@dataclass(frozen=True, slots=True)
class Side(Generic[Worker]):
    """A worker, its stream, and the messages it takes and sends."""

    stream: Stream
    worker: Worker
    caches: Buffer
    inbox: tuple[Buffer, ...]
    outbox: tuple[Buffer, ...]

    def launch(
        self, work: Callable[[], None], label: str, *, takes: bool = False, sends: bool = False
    ) -> None:
        """Queue ``work``, which uses the worker's own caches, reads the other side's message if
        it ``takes`` and writes this side's if it ``sends``."""
        self.stream.launch(
            work,
            reads=(self.caches, *self.inbox) if takes else (self.caches,),
            writes=(self.caches, *self.outbox) if sends else (self.caches,),
            label=label,
        )


def target_side(stream: Stream, worker: TargetWorker) -> Side[TargetWorker]:
    """The target takes proposals and sends outcomes."""
    mailbox = worker.mailbox
    proposals = (mailbox.proposals, mailbox.draft_figures)
    outcomes = (mailbox.outcomes, mailbox.figures)
    return Side(stream, worker, worker.session.kv_buffer, proposals, outcomes)


def draft_side(stream: Stream, worker: DraftWorker) -> Side[DraftWorker]:
    """The draft takes outcomes and sends proposals."""
    mailbox = worker.mailbox
    proposals = (mailbox.proposals, mailbox.draft_figures)
    outcomes = (mailbox.outcomes, mailbox.figures)
    return Side(stream, worker, worker.session.kv_buffer, outcomes, proposals)


class Rounds:
    """Runs rounds of one mode, and what the host asks for between them."""

    def __init__(
        self, device: Device, mode: str, target: Side[TargetWorker], draft: Side[DraftWorker] | None
    ) -> None:
        if (draft is None) != (mode == "ar"):
            raise DeviceError(f"mode {mode} and {'no' if draft is None else 'a'} draft do not fit")
        self._device = device
        self._mode = mode
        self._target = target
        self._draft = draft
        self._decided: Event = device.create_event("decided")
        self._scored: Event = device.create_event("scored")
        self._proposed: Event = device.create_event("proposed")
        self._fed: Event = device.create_event("fed")
        self._is_scored = False
        self._state = State.IDLE

    def reset(self) -> None:
        """Queue the forgetting of every text; the caches go back to their fewest rows."""
        self._target.launch(self._target.worker.reset, "reset")
        if self._draft is not None:
            self._draft.launch(self._draft.worker.reset, "reset")

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """Queue a text's joining, on both sides."""
        self._target.launch(partial(self._target.worker.admit, slot, entry), "admit")
        if self._draft is not None:
            self._draft.launch(partial(self._draft.worker.admit, slot, entry), "admit")

    def feed(self, slot: SlotRef) -> None:
        """Queue the next chunk of a slot's prompt, on both sides at once.

        Waits until the target has done the chunk before, so that a long prompt that nobody
        wants any more is soon off the streams.
        """
        self._fed.sync()
        self._target.launch(partial(self._target.worker.feed, slot), "prompt")
        self._target.stream.record(self._fed)
        if self._draft is not None:
            self._draft.launch(partial(self._draft.worker.feed, slot), "prompt")

    def retire(self, slot: SlotRef) -> None:
        """Queue the end of a slot's text, on both sides."""
        self._target.launch(partial(self._target.worker.retire, slot), "retire")
        if self._draft is not None:
            self._draft.launch(partial(self._draft.worker.retire, slot), "retire")

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """Queue a text's move to a free slot, on both sides."""
        self._target.launch(partial(self._target.worker.move, source, destination), "move")
        if self._draft is not None:
            move = partial(self._draft.worker.move, source, destination)
            self._draft.launch(move, "move", sends=True)
            self._draft.stream.record(self._proposed)

    def launch(self, *, scores: bool = False) -> None:
        """Queue one round; ``scores`` where a row asks for log-probabilities."""
        self._move(State.IDLE, State.LAUNCHED)
        target, draft = self._target, self._draft
        if draft is not None and self._mode == "sd":
            draft.launch(draft.worker.draft, "draft", sends=True)
            draft.stream.record(self._proposed)
        target.stream.wait(self._proposed)
        target.launch(target.worker.verify, "verify", takes=True, sends=True)
        target.stream.record(self._decided)
        self._is_scored = scores
        if scores:
            target.stream.launch(target.worker.score, reads=target.outbox, label="score")
            target.stream.record(self._scored)
        if draft is None:
            return
        if self._mode == "sd":
            draft.stream.wait(self._decided)
            draft.launch(draft.worker.follow, "follow", takes=True)
        else:
            draft.launch(draft.worker.prepare, "prepare")
            draft.stream.wait(self._decided)
            draft.launch(draft.worker.adopt, "adopt", takes=True, sends=True)
            draft.stream.record(self._proposed)
            draft.launch(draft.worker.commit, "commit")

    def outcomes(self) -> tuple[list[list[int]], list[float]]:
        """Wait for the target's decision: each row's outcome and the figures, as
        ``runtime.workers.mailbox`` lays them out. A row that was not judged is stale."""
        (self._scored if self._is_scored else self._decided).sync()
        self._move(State.LAUNCHED, State.DECIDED)
        mailbox = self._target.worker.mailbox
        self._device.host_access(reads=(mailbox.outcomes, mailbox.figures), label="read outcomes")
        rows: list[list[int]] = mailbox.outcomes.array.tolist()
        figures: list[float] = mailbox.figures.array.tolist()
        self._move(State.DECIDED, State.IDLE)
        return rows, figures

    @property
    def logprobs(self) -> list[list[TokenLogprobs]]:
        """Of the emitted tokens of each row that asked, after ``outcomes``."""
        return self._target.worker.mailbox.logprobs

    def finish(self) -> None:
        """Wait until both sides are idle, whatever state the round was in."""
        try:
            self._target.stream.sync()
        finally:
            if self._draft is not None:
                self._draft.stream.sync()
        self._state = State.IDLE

    def _move(self, before: State, after: State) -> None:
        if self._state is not before:
            raise DeviceError(f"a round is {self._state.name}, expected {before.name}")
        self._state = after
