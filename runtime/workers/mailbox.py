"""What crosses between target and draft: a proposal one way, an outcome the other, per row.

A few integers each. Under the ratio rule the sparse laws of the drafted tokens travel too. The
proposal is written by the draft's stream and read by the target's, the outcome the other way
round; events order the two, and the order checker sees the buffers.
"""

from __future__ import annotations

import numpy as np

from runtime.device.api import Buffer, Device
from runtime.sampling.proposal import Drafted, Nothing, Proposal, SparseLaw
from runtime.spec.outcome import Outcome


class Mailbox:
    """Room for one round of ``num_rows`` rows with up to ``num_draft`` (K) drafted tokens."""

    def __init__(self, device: Device, num_rows: int, num_draft: int) -> None:
        self.num_rows = num_rows
        self.num_draft = num_draft
        # [B, 1 + K]: how many tokens, then the tokens.
        self.proposals: Buffer = device.allocate(
            "proposals", (num_rows, 1 + num_draft), np.dtype(np.int64)
        )
        # [B, 1 + K + 1]: how many accepted, then the emitted tokens, the bonus token last.
        self.outcomes: Buffer = device.allocate(
            "outcomes", (num_rows, 2 + num_draft), np.dtype(np.int64)
        )
        self._laws: list[tuple[SparseLaw, ...] | None] = [None] * num_rows

    def clear(self) -> None:
        """No row proposes anything (the state before a first round)."""
        self.proposals.array[:] = 0
        self._laws = [None] * self.num_rows

    def propose(
        self, row: int, tokens: tuple[int, ...], laws: tuple[SparseLaw, ...] | None
    ) -> None:
        cells = self.proposals.array[row]
        cells[0] = len(tokens)
        cells[1 : 1 + len(tokens)] = tokens
        self._laws[row] = laws

    def proposal(self, row: int) -> Proposal:
        cells = self.proposals.array[row]
        if cells[0] == 0:
            return Nothing()
        return Drafted(tuple(cells[1 : 1 + cells[0]].tolist()), self._laws[row])

    def decide(self, row: int, drafts: tuple[int, ...], outcome: Outcome) -> None:
        cells = self.outcomes.array[row]
        cells[0] = outcome.accepted
        cells[1 : 1 + outcome.accepted] = drafts[: outcome.accepted]
        cells[1 + outcome.accepted] = outcome.bonus

    def emitted(self, row: int) -> list[int]:
        """The row's new tokens: the accepted ones and the bonus token."""
        cells = self.outcomes.array[row]
        return [int(token) for token in cells[1 : 2 + cells[0]]]

    def outcome(self, row: int) -> Outcome:
        cells = self.outcomes.array[row]
        return Outcome(int(cells[0]), int(cells[1 + cells[0]]))
