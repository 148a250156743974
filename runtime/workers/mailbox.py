"""What crosses between target, draft and host: a proposal one way, an outcome the other, per row.

A few integers each, in buffers of the device. Proposals are written on the draft's stream and
read on the target's; outcomes the other way round. The host has readings of its own, the outcomes
of two rounds, so that it may read one while the next is being written. Events order all of it, and
the order checker sees the buffers. Each row carries the generation of the lease it was written for,
so a message that was left in a slot is never taken for one to its next holder.

Two things travel beside the integers, where a request asks for them: the sparse laws of drafted
tokens (ratio rule) and the log-probabilities of emitted ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from runtime.device.api import Buffer, Device
from runtime.kv.slots import SlotRef
from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.proposal import Drafted, Lookup, Nothing, Proposal, SparseLaw
from runtime.spec.fallback import ProposalKind

GENERATION, KIND, COUNT, ACCEPTED = range(4)
"""Columns of both messages: the lease, a ``Kind``, how many drafted tokens; of an outcome also
how many of them were accepted."""
PROPOSED, EMITTED = 3, 4
"""Where the tokens of a proposal and of an outcome begin. A proposal and the host's reading of an
outcome have one column more, ``Mailbox.rank_at``: see there."""
NUM_READINGS = 2


class Kind(IntEnum):
    """What a row brings into a round, as a number on a device; SKIP: it sits the round out.
    OVERRULED is a lookup, too: one that promised more than what was prepared for the outcome."""

    NONE = 0
    HIT = 1
    JIT = 2
    LOOKUP = 3
    SKIP = 4
    OVERRULED = 5

    @property
    def source(self) -> ProposalKind:
        """The same for the statistics, which never see SKIP."""
        return _SOURCES[self]

    @property
    def was_prepared(self) -> bool:
        """Whether the outcome before had been prepared."""
        return self in (Kind.HIT, Kind.OVERRULED)


_SOURCES = {
    Kind.NONE: ProposalKind.NONE,
    Kind.HIT: ProposalKind.HIT,
    Kind.JIT: ProposalKind.JIT,
    Kind.LOOKUP: ProposalKind.LOOKUP,
    Kind.OVERRULED: ProposalKind.LOOKUP,
}

NUM_FIGURES = 8
DRAFT_S, EXPOSED_S, PREDICTED_HITS, NUM_PREDICTED, STARTED_AT, DECIDED_AT, VERIFY_S, SPAN = range(
    NUM_FIGURES
)
"""Columns of the figures, all but three of them sums since the start:

DRAFT_S         seconds the draft worked
EXPOSED_S       those of them that the target waited for
PREDICTED_HITS  sum of the predicted probabilities that an outcome was prepared
NUM_PREDICTED   how many predictions that was
STARTED_AT      ``perf_counter`` when the last verification began, and
DECIDED_AT      when it was judged
VERIFY_S        seconds the target verified
SPAN            rows of each slot's cache that the last verification was given; 0: unknown
"""
NUM_DRAFT_FIGURES = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """What the host reads of a decided round: outcomes by row, figures, and the log-probabilities
    of the emitted tokens of the rows that ask."""

    rows: list[list[int]]
    figures: list[float]
    logprobs: Sequence[list[TokenLogprobs]]


class Mailbox:
    """Room for one round of ``num_rows`` rows with up to ``num_draft`` (K) drafted tokens.

    ``rank_at`` is the last column of a reading: 1 + the rank that the bonus token of the row's
    outcome before had among the draft's candidates, 0 where it was none of them. A proposal has
    the same in its own last column.
    ``readings[place]``, for places 0 and 1, are the buffers that a round's reading is in.
    """

    def __init__(self, device: Device, num_rows: int, num_draft: int) -> None:
        self.num_rows = num_rows
        self.num_draft = num_draft
        width = max(1, num_draft)
        self.rank_at = EMITTED + width + 1
        integer, real = np.dtype(np.int64), np.dtype(np.float64)
        # [B, 3 + K + 1], [B, 4 + K + 1] and [B, 4 + K + 2]
        self.proposals: Buffer = device.allocate(
            "proposals", (num_rows, PROPOSED + width + 1), integer
        )
        self.outcomes: Buffer = device.allocate("outcomes", (num_rows, self.rank_at), integer)
        self.draft_figures: Buffer = device.allocate("draft figures", (NUM_DRAFT_FIGURES,), real)
        self.figures: Buffer = device.allocate("figures", (NUM_FIGURES,), real)
        self.readings: tuple[tuple[Buffer, Buffer], ...] = tuple(
            (
                device.allocate(f"reading {place}", (num_rows, self.rank_at + 1), integer),
                device.allocate(f"figures of reading {place}", (NUM_FIGURES,), real),
            )
            for place in range(NUM_READINGS)
        )
        self.logprobs: tuple[list[list[TokenLogprobs]], ...] = tuple(
            [[] for _ in range(num_rows)] for _ in range(NUM_READINGS)
        )
        self._laws: list[tuple[SparseLaw, ...] | None] = [None] * num_rows
        self._padding = [0] * (width + 1)

    def read(self, place: int) -> Reading:
        """The reading of a round. The host's, once the round's event is reached."""
        rows, figures = self.readings[place]
        return Reading(rows.array.tolist(), figures.array.tolist(), self.logprobs[place])

    def propose(
        self,
        row: int,
        generation: int,
        kind: Kind,
        tokens: Sequence[int] = (),
        laws: tuple[SparseLaw, ...] | None = None,
        rank: int | None = None,
    ) -> None:
        """The draft's message for one row of the next round; ``rank`` as ``rank_at`` says."""
        count = len(tokens)
        cells = [generation, kind, count, *tokens, *self._padding[count:]]
        cells[-1] = 0 if rank is None else 1 + rank
        self.proposals.array[row] = cells
        self._laws[row] = laws

    def proposal(self, row: int, generation: int) -> Proposal:
        """The row's proposal to that lease; Nothing where it was written for another."""
        cells: list[int] = self.proposals.array[row].tolist()
        count = cells[COUNT]
        if count == 0 or cells[GENERATION] != generation:
            return Nothing()
        tokens = tuple(cells[PROPOSED : PROPOSED + count])
        is_copied = cells[KIND] in (Kind.LOOKUP, Kind.OVERRULED)
        return Lookup(tokens) if is_copied else Drafted(tokens, self._laws[row])

    def move(self, source: SlotRef, destination: SlotRef) -> None:
        """A proposal follows its row to another slot and lease; one to an earlier holder of the
        old slot does not."""
        old, new = source.index, destination.index
        cells = self.proposals.array
        if cells[old, GENERATION] == source.generation:
            cells[new] = cells[old]
            cells[new, GENERATION] = destination.generation
            self._laws[new], self._laws[old] = self._laws[old], None

    def decide(
        self,
        row: int,
        generation: int,
        kind: Kind,
        tokens: Sequence[int],
        accepted: int,
        bonus: int,
    ) -> None:
        """The target's message of one row: ``tokens`` were proposed; see also ``send``."""
        cells = self.outcomes.array[row]
        cells[:EMITTED] = generation, kind, len(tokens), accepted
        cells[EMITTED : EMITTED + accepted] = tokens[:accepted]
        cells[EMITTED + accepted] = bonus

    def outcome(
        self, generation: int, kind: int, proposal: Sequence[int], emitted: Sequence[int]
    ) -> list[int]:
        """One row's cells of the reading for the host: what it brought into the round, as in its
        ``proposal``'s cells, and the tokens that it ``emitted``, none where it was not judged."""
        padding = self._padding[len(emitted) :]
        accepted = max(0, len(emitted) - 1)
        return [generation, kind, proposal[COUNT], accepted, *emitted, *padding, proposal[-1]]

    def decide_all(self, place: int, outcomes: Sequence[Sequence[int]]) -> None:
        """The target's reading for the host: the ``outcome`` of every slot. ``send`` makes the
        message of it."""
        self.readings[place][0].array[:] = outcomes

    def send(self, place: int) -> None:
        """What the host will read is the target's message to the draft, too."""
        rows, figures = self.readings[place]
        self.outcomes.array[:] = rows.array[:, : self.rank_at]
        self.figures.array[:] = figures.array
