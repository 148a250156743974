"""What the rounds ask of a pair's two workers, whatever they run on.

``runtime.workers.target`` and ``.draft`` compute on the host, ``runtime.resident`` enqueues on
devices. All methods are work of the worker's own stream. Both sides get joins, leaves and moves in
the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runtime.device.api import Buffer
from runtime.kv.kept import Shift
from runtime.kv.slots import SlotRef
from runtime.spec.plan import RoundPlan
from runtime.workers.entry import Entry, Resumed
from runtime.workers.mailbox import Reading


class Post(Protocol):
    """What crosses between target, draft and host (``runtime.workers.mailbox``)."""

    num_rows: int
    num_draft: int
    rank_at: int
    readings: tuple[tuple[Buffer, Buffer], ...]

    @property
    def proposals(self) -> Buffer: ...

    @property
    def outcomes(self) -> Buffer: ...

    @property
    def draft_figures(self) -> Buffer: ...

    @property
    def figures(self) -> Buffer: ...

    def read(self, place: int) -> Reading:
        """The reading of a round. The host's, once the round's event is reached."""


class HasCaches(Protocol):
    """A session, of which the rounds know the caches' memory alone."""

    @property
    def kv_buffer(self) -> Buffer: ...


class Worker(Protocol):
    """What both sides do between rounds."""

    @property
    def session(self) -> HasCaches: ...

    @property
    def mailbox(self) -> Post: ...

    def reset(self, keeps: int | None = None) -> None:
        """Forget every text and go back to the fewest cache rows; or, where free slots keep
        something, to the fewest that hold ``keeps`` positions."""

    def admit(self, slot: SlotRef, entry: Entry) -> None:
        """A text takes a slot; its prompt is fed by ``feed``, chunk by chunk."""

    def feed(self, slot: SlotRef) -> None:
        """Feed the next chunk of the slot's prompt; after the last one its text runs."""

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:
        """The slot's text has ended, or is wanted no more. The cache rows of its first
        ``num_kept`` positions stay, as far as there are any."""

    def shift(self, shift: Shift) -> None:
        """What a free slot keeps goes to another."""

    def share(self, source: SlotRef, destination: SlotRef, num_positions: int) -> None:
        """A text whose prompt is being fed begins as another one, which the target was fed so many
        positions of: it gets their rows, and is fed the rest."""

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A text moves to a free slot, under a new lease; what that slot keeps goes to the old
        one."""


class Verifies(Worker, Protocol):
    """The target's side; see ``runtime.workers.target.TargetWorker``."""

    def verify(
        self, num_draft: int | None = None, place: int = 0, *, sends: bool = True
    ) -> None: ...

    def score(self, place: int = 0) -> None: ...


class Drafts(Worker, Protocol):
    """The draft's side; see ``runtime.workers.draft.DraftWorker``."""

    @property
    def plan(self) -> RoundPlan:
        """K and W at most, and the fallback where a round's plan says nothing else."""

    def resume(self, texts: Sequence[Resumed]) -> None: ...

    def catch_up(self, slot: SlotRef) -> None: ...

    def draft(self, plan: RoundPlan | None = None) -> None: ...

    def follow(self, plan: RoundPlan | None = None) -> None: ...

    def prepare(self, plan: RoundPlan | None = None) -> None: ...

    def adopt(self, plan: RoundPlan | None = None) -> None: ...

    def commit(self) -> None: ...
