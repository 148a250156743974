"""The draft's rows in device memory: what texts are, what they propose, what was prepared."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.device.api import Device
from runtime.kv.layout import SlotLayout
from runtime.resident.exchange import Exchange
from runtime.resident.kernels import Work
from runtime.resident.ledger import Held
from runtime.resident.slabs import Slab
from runtime.resident.verdicts import outcome_width, unjudged


class DraftRows:
    """Slabs of ``num_slots`` rows; W and F are those of the largest plan.

    rows      one row a slot: it moves with its text
    prepared  the outcomes of one round and what was drafted for them, dense for the round's own W,
              as ``plugins.fork`` has them; void behind the round's commit
    plan      which outcomes to prepare
    """

    def __init__(
        self,
        device: Device,
        work: Work,
        mailbox: Exchange,
        layout: SlotLayout,
        vocab_size: int,
        *,
        num_branches: int,
        num_ranks: int,
    ) -> None:
        """Raises DeviceError where the device has too little memory."""
        size, depth = mailbox.num_rows, mailbox.max_draft
        width = depth + 1
        self.num_slots = size
        self.max_draft = depth
        self.num_ranks = num_ranks
        self.proposal = mailbox.proposal
        self._work = work
        self._layout = layout
        self._vocab_size = vocab_size
        self.rows = Slab(
            device,
            "draft rows",
            {
                "limit": ("int64", (size,)),
                "round": ("int64", (size,)),
                "active": ("bool", (size,)),
                "length": ("int64", (size,)),
                "last_tokens": ("int64", (size, 2)),
                "verify_positions": ("int64", (size, width)),
                "verify_write_at": ("int64", (size,)),
                "root_tokens": ("int64", (size, 1)),
                "root_positions": ("int64", (size, 1)),
                "root_write_at": ("int64", (size,)),
                "winner": ("int32", (size,)),
                "commit_at": ("int64", (size,)),
                "candidates": ("int64", (size, width, num_ranks)),
                "outcome": ("int64", (size, outcome_width(depth))),
            },
        )
        branches = (size, num_branches)
        self.prepared = Slab(
            device,
            "prepared outcomes",
            {
                "cache_branches": ("int32", (size,)),
                "cache_depth": ("int32", (size,)),
                "cache_generation": ("int64", (size,)),
                "cache_round": ("int64", (size,)),
                "cache_accepted": ("int32", branches),
                "cache_bonus": ("int64", branches),
                "cache_tokens": ("int64", (depth, *branches)),
                "fork_tokens": ("int64", branches),
                "lengths": ("int64", branches),
                "root_list": ("int64", (size, num_ranks + 1)),
                "branch_lists": ("int64", (depth, *branches, num_ranks + 1)),
                "sample": ("int64", (size,)),
                "sample_positions": ("int64", (size,)),
                "zeros": ("int64", (size,)),
            },
        )
        self.plan = Slab(device, "fan-out", {"fan_out": ("int32", (width, width))})

    def put(self, row: Held, tokens: Sequence[int]) -> None:
        """Write a row with no proposal, of a text that the device has not yet, or no more, a say
        in. ``tokens`` are prompt and text."""
        if not row.is_running:
            self._write(row.slot.index, row.slot.generation, row.entry.limit, row.fed, None)
            return
        before = tokens[-2] if len(tokens) > 1 else 0
        ending = (before, tokens[-1])
        self._write(row.slot.index, row.slot.generation, row.entry.limit, len(tokens) - 1, ending)

    def vacate(self, index: int) -> None:
        """Nobody holds the slot: its row is a dummy at the start of the cache."""
        self._write(index, 0, 0, 0, None)

    def move(self, old: int, new: int, generation: int) -> None:
        """A text and its proposal go to another slot, under a new lease."""
        for slab in (self.rows, self.proposal):
            for field in slab.shapes:
                source, target = slab.row(field, old), slab.row(field, new)
                self._work.copy(source, target, slab.row_bytes(field))
        self._work.put(self.proposal.segments(new, {"generation": generation}))
        self.vacate(old)

    def known(self, tokens: Sequence[int]) -> list[int]:
        """``tokens`` with 0 for ids that the draft has no embedding of."""
        return [token if token < self._vocab_size else 0 for token in tokens]

    def _write(
        self,
        index: int,
        generation: int,
        limit: int,
        position: int,
        ending: tuple[int, int] | None,
    ) -> None:
        """``position`` is the first that no cache row holds; ``ending`` the text's last two tokens,
        the last of which stands there, None for a dummy."""
        last = ending or (0, 0)
        proposal = {
            "generation": generation,
            "kind": 0,
            "num_draft": 0,
            "verify_tokens": [last[1], *[0] * self.max_draft],
        }
        row = {
            "limit": limit,
            "active": ending is not None,
            "length": position + 1,
            "last_tokens": last,
            "root_tokens": self.known(last[1:]),
            "root_positions": [position],
            "root_write_at": self._layout.trunk_row(position),
            "winner": -1,
            "outcome": unjudged(self.max_draft),
        }
        self._work.put(
            [
                *self.proposal.segments(index, proposal),
                *self.rows.segments(index, row),
                *self.prepared.segments(index, {"cache_branches": 0}),
            ]
        )
