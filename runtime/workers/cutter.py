"""Ends proposals where the draft is unsure of itself (``runtime.spec.length``), row by row.

A token that is drafted between two verifications can be left out once it is known: nothing is
prepared from it. Of drafts that outcomes are prepared from, the draft's logits behind the last one
are wanted, so there a proposal only stops growing. Of tokens prepared ahead a prefix is proposed.

For the coupled rule only: leaving a token out because of what it is would change the law that the
ratio rule emits.
"""

from __future__ import annotations

import numpy as np

from runtime.sampling.params import SamplingParams
from runtime.spec.length import Lengths, confidence
from runtime.workers.branches import Branches
from runtime.workers.draft_row import DraftRow


class Cutter:
    """Keeps each row's confidences until its proposal is judged. Works on the draft's stream."""

    def __init__(self, lengths: Lengths, ids_map: np.ndarray | None, num_rows: int) -> None:
        """``ids_map`` int64 [output vocabulary], target ids; None where ids are the target's."""
        self.lengths = lengths
        known = [] if ids_map is None else ids_map.tolist()
        self._indices = {token: index for index, token in enumerate(known)}
        # By slot: whose they are (the lease's generation), the confidences, and how often all of
        # them are accepted.
        self._kept: list[tuple[int, list[float]]] = [(0, []) for _ in range(num_rows)]
        self._reached = [1.0] * num_rows

    def begin(self, row: DraftRow) -> None:
        """The row's proposal is drafted anew."""
        self._kept[row.slot.index] = row.slot.generation, []
        self._reached[row.slot.index] = 1.0

    def takes(self, row: DraftRow, logits: np.ndarray, token: int, *, may_drop: bool) -> bool:
        """Whether the token just drafted, from ``logits`` [V], is proposed."""
        index = row.slot.index
        sure = self._confidence(row, logits, token)
        reached = self.lengths.reach(self._reached[index], sure)
        if may_drop and not self.lengths.is_proposed(reached, sure):
            return False
        self._reached[index] = reached
        self._kept[index][1].append(sure)
        return True

    def goes_on(self, row: DraftRow) -> bool:
        """Whether to draft another token behind the last one."""
        index = row.slot.index
        return self.lengths.goes_on(self._reached[index], self._kept[index][1][-1])

    def cut(self, row: DraftRow, branches: Branches, branch: int) -> tuple[int, ...]:
        """What is proposed of the row's proposal, whose tokens ``branch`` has prepared."""
        tokens = row.proposal
        logits = branches.logits(row.slot.index, branch, len(tokens))
        sure = [self._confidence(row, *each) for each in zip(logits, tokens, strict=True)]
        count = self.lengths.kept(sure)
        self._kept[row.slot.index] = row.slot.generation, sure[:count]
        return tokens[:count]

    def judged(self, row: DraftRow, accepted: int) -> None:
        """The row's proposal was judged: learn from it."""
        generation, sure = self._kept[row.slot.index]
        if generation == row.slot.generation and len(sure) == len(row.proposal):
            self.lengths.observe(sure, accepted)
        self._kept[row.slot.index] = 0, []

    def _confidence(self, row: DraftRow, logits: np.ndarray, token: int) -> float:
        params: SamplingParams = row.entry.params
        if params.chooses_in_graph(len(row.tokens)):
            return confidence(logits)
        return confidence(logits, self._indices.get(token, token), params.temperature)
