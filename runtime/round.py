"""One round of decoding in each mode, as launches on streams.

States of a round, with what moves it on:

    IDLE       launch()      work is queued on the streams; nothing blocks
    LAUNCHED   decided.sync  the target has judged: outcomes are readable
    DECIDED    emitted()     the host reads them; callers may see what it commits
    IDLE       ...           the next round

The lanes of an ``ssd`` round (``sd`` drafts between two verifications instead; ``ar`` has no
draft):

    target | wait proposed | verify .................. | decided
    draft  |               | root, fork, K branch steps | wait decided | adopt | proposed | commit

``commit`` (moving a hit's cache rows) comes after ``proposed``, off the critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from engines.errors import DeviceError
from runtime.device.api import Buffer, Device, Event, Stream
from runtime.kv.slots import SlotRef
from runtime.sampling.params import SamplingParams
from runtime.workers.draft import DraftWorker
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
    inbox: Buffer
    outbox: Buffer

    def launch(
        self, work: Callable[[], None], label: str, *, takes: bool = False, sends: bool = False
    ) -> None:
        """Queue ``work``, which uses the worker's own caches, reads the other side's message if
        it ``takes`` and writes this side's if it ``sends``."""
        self.stream.launch(
            work,
            reads=[self.caches, self.inbox] if takes else [self.caches],
            writes=[self.caches, self.outbox] if sends else [self.caches],
            label=label,
        )


def target_side(stream: Stream, worker: TargetWorker) -> Side[TargetWorker]:
    """The target takes proposals and sends outcomes."""
    mailbox = worker.mailbox
    return Side(stream, worker, worker.session.kv_buffer, mailbox.proposals, mailbox.outcomes)


def draft_side(stream: Stream, worker: DraftWorker) -> Side[DraftWorker]:
    """The draft takes outcomes and sends proposals."""
    mailbox = worker.mailbox
    return Side(stream, worker, worker.session.kv_buffer, mailbox.outcomes, mailbox.proposals)


class Rounds:
    """Runs rounds of one mode over the batch that the workers were started with."""

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
        self._proposed: Event = device.create_event("proposed")
        self._state = State.IDLE

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        slots: Sequence[SlotRef],
    ) -> None:
        """Queue the prompts on both sides at once; row i of the batch is slot i."""
        target, draft = self._target, self._draft
        mailbox = target.worker.mailbox
        self._device.host_access(writes=[mailbox.proposals], label="clear proposals")
        mailbox.clear()
        target.launch(lambda: target.worker.start(prompts, params), "prompt")
        if draft is not None:
            draft.launch(lambda: draft.worker.start(prompts, params, slots), "prompt")

    def launch(self) -> None:
        """Queue one round."""
        self._move(State.IDLE, State.LAUNCHED)
        target, draft = self._target, self._draft
        if draft is not None and self._mode == "sd":
            draft.launch(draft.worker.draft, "draft", sends=True)
            draft.stream.record(self._proposed)
        target.stream.wait(self._proposed)
        target.launch(target.worker.verify, "verify", takes=True, sends=True)
        target.stream.record(self._decided)
        if draft is not None:
            if self._mode == "ssd":
                draft.launch(draft.worker.prepare, "prepare")
            draft.stream.wait(self._decided)
            draft.launch(draft.worker.adopt, "adopt", takes=True, sends=True)
            draft.stream.record(self._proposed)
            draft.launch(draft.worker.commit, "commit")

    def emitted(self) -> list[list[int]]:
        """Wait for the target's decision; each row's new tokens (of a retired row: stale)."""
        self._decided.sync()
        self._move(State.LAUNCHED, State.DECIDED)
        mailbox = self._target.worker.mailbox
        self._device.host_access(reads=[mailbox.outcomes], label="read outcomes")
        rows = [mailbox.emitted(row) for row in range(len(self._target.worker.rows))]
        self._move(State.DECIDED, State.IDLE)
        return rows

    def retire(self, row: int) -> None:
        """Queue the end of a row's text on both sides."""
        target, draft = self._target, self._draft
        target.launch(lambda: target.worker.retire(row), "retire")
        if draft is not None:
            draft.launch(lambda: draft.worker.retire(row), "retire")

    def finish(self) -> None:
        """Wait until both sides are idle; the batch is over, whatever state its round was in."""
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
