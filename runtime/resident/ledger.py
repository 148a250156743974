"""What the host knows of the rows of one side, where the rows themselves are device memory.

Written by the side's own work, so by one thread. Of a running text it knows a length that the
text had, and how much longer each round queued since may have made it: that bounds the cache rows
of the next call. Outcomes that have been read make the bound exact again.

Rounds go by number, since the host may read one before this side's thread has come to queue it,
and leaves some unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from runtime.kv.slots import SlotRef
from runtime.workers import mailbox as mail
from runtime.workers.entry import Entry, require_free, require_lease
from runtime.workers.mailbox import Kind

Rows = Sequence[Sequence[int]]
"""Outcomes by slot, as ``runtime.workers.mailbox`` lays them out."""


@dataclass(slots=True)
class Held:
    """A slot's holder.

    fed       tokens of the prompt that the cache holds; all but its last one are fed. After a rest
              those of the text that the draft's cache holds
    known     tokens of the text by the last outcome that was read
    unread    tokens that rounds since may have added
    """

    slot: SlotRef
    entry: Entry
    fed: int = 0
    is_running: bool = False
    known: int = 0
    unread: int = 0

    @property
    def most(self) -> int:
        """Tokens that the text has at most, while it runs: at its limit it ends."""
        if not self.is_running:
            return self.fed + 1
        return max(self.known, min(self.known + self.unread, self.entry.limit - 1))


class Ledger:
    """The holders of all slots."""

    def __init__(self, num_slots: int) -> None:
        self.rows: list[Held | None] = [None] * num_slots
        self.num_rows = 0
        """Rows of the next call: up to the last slot whose text runs."""
        self._widths: dict[int, int] = {}
        self._newest = 0
        self._read: SimpleQueue[tuple[int, Rows]] = SimpleQueue()
        self._early: list[tuple[int, Rows]] = []

    def reset(self) -> None:
        """Forget every text, and outcomes that nobody has read."""
        self.rows[:] = [None] * len(self.rows)
        self.forget_rounds()
        self._count()

    def admit(self, slot: SlotRef, entry: Entry) -> Held:
        """Raises CapacityError while another text holds the slot."""
        held = self.rows[slot.index]
        require_free(None if held is None else held.slot, slot)
        row = self.rows[slot.index] = Held(slot, entry)
        self._run_if_fed(row)
        return row

    def fed(self, row: Held, num_tokens: int) -> None:
        """So many more tokens of the prompt are in the cache."""
        row.fed += num_tokens
        self._run_if_fed(row)

    def of(self, slot: SlotRef) -> Held:
        """The holder; raises CapacityError when the lease is over."""
        row = self.rows[slot.index]
        require_lease(None if row is None else row.slot, slot)
        assert row is not None
        return row

    def retire(self, slot: SlotRef) -> None:
        self.of(slot)
        self.rows[slot.index] = None
        self._count()

    def move(self, source: SlotRef, destination: SlotRef) -> Held:
        self.learn()  # what was read says the old slot
        row, held = self.of(source), self.rows[destination.index]
        require_free(None if held is None else held.slot, destination)
        row.slot = destination
        self.rows[destination.index], self.rows[source.index] = row, None
        self._count()
        return row

    def resume(self, row: Held, num_tokens: int, num_fed: int, *, is_running: bool) -> None:
        """The text has ``num_tokens`` tokens by now, of which the other side's cache holds
        ``num_fed``; this side's holds at most as many, and all of them up to ``row.fed``."""
        row.fed = min(row.fed, num_fed)
        row.is_running, row.known, row.unread = is_running, num_tokens, 0
        self._count()

    @property
    def most(self) -> int:
        """Tokens that the longest text has at most; 1 without any."""
        return max((row.most for row in self.rows if row is not None), default=1)

    @property
    def truncates(self) -> bool:
        """Whether a text's law may cut ids."""
        return any(row is not None and row.entry.params.truncates for row in self.rows)

    def queue_round(self, number: int, width: int) -> None:
        """A round was queued that adds up to ``width`` tokens to each running text. Numbers only
        go up, and by one in rounds that follow each other."""
        self._widths[number] = width
        self._newest = number
        for row in self._running():
            row.unread += width

    def note_read(self, number: int, rows: Rows) -> None:
        """The host has read the outcomes of that round. From any thread."""
        self._read.put((number, rows))

    def learn(self) -> None:
        """Take in what was read since."""
        with suppress(Empty):
            while True:
                self._early.append(self._read.get_nowait())
        while self._early and self._early[0][0] <= self._newest:
            number, rows = self._early.pop(0)
            width = self._widths.pop(number, None)
            for unread in [each for each in self._widths if each < number]:
                del self._widths[unread]
            if width is not None:
                self._learn(rows, width)

    def _learn(self, rows: Rows, width: int) -> None:
        for row in self._running():
            cells = rows[row.slot.index]
            if cells[mail.KIND] == Kind.SKIP or cells[mail.GENERATION] != row.slot.generation:
                continue
            row.known += cells[mail.ACCEPTED] + 1
            row.unread -= width
            row.fed = max(row.fed, row.known - 2)  # a draft's may lack the last two

    def forget_rounds(self) -> None:
        """No outcome of a round that was queued so far will be read."""
        self._widths.clear()
        self._read = SimpleQueue()
        self._early.clear()
        for row in self._running():
            row.unread = 0

    def _running(self) -> list[Held]:
        return [row for row in self.rows if row is not None and row.is_running]

    def _run_if_fed(self, row: Held) -> None:
        if row.fed == len(row.entry.prompt) - 1:
            row.is_running, row.known = True, len(row.entry.prompt)
            self._count()

    def _count(self) -> None:
        running = (row.slot.index for row in self._running())
        self.num_rows = 1 + max(running, default=-1)
