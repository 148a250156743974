"""Branch steps: K tokens drafted for each fork of each row, all rows and forks in one call a depth.

A fork is an outcome's (accepted count, first token): the branch attends the text, that many drafted
tokens and itself. A row that missed and was left without drafts has one fork of another kind: the
token it would have drafted next. So it gets its drafts in the calls that the other rows need
anyway, and delays none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.backends.api import CallShape, Step
from runtime.kv.layout import branch_mask
from runtime.sampling.proposal import SparseLaw
from runtime.workers.draft_calls import DraftCalls
from runtime.workers.draft_row import DraftRow, Laws, RowState

Fork = tuple[int, int]


class Branches:
    """The branch steps of one round; arrays are allocated once, for K and W at most."""

    def __init__(self, calls: DraftCalls, num_rows: int, num_draft: int, num_branches: int) -> None:
        self._calls = calls
        self._depth = num_draft
        # Positions before each branch's first token, 0 for padding; and its tokens by depth.
        self._lengths = np.zeros((num_rows, num_branches), np.int64)
        self._paths = np.zeros((num_draft + 1, num_rows, num_branches), np.int64)
        self._steps: list[Step] = []

    def run(
        self,
        rows: Sequence[DraftRow | None],
        forks: Mapping[int, Sequence[Fork]],
        num_prepared: Sequence[int],
        *,
        num_draft: int,
        num_branches: int,
    ) -> None:
        """Draft ``num_draft`` tokens for ``forks`` of the rows of slots 0, 1, ..., up to
        ``num_branches`` a row; ``num_prepared[d]`` outcomes will be prepared for a rejection of a
        proposal's token d."""
        count, self._depth = 1 + max(forks), num_draft
        lengths, paths = self._lengths[:count, :num_branches], self._paths[:, :count, :num_branches]
        lengths[:] = 0
        paths[0] = 0
        by_rule: list[tuple[int, DraftRow]] = []
        for index, of_row in forks.items():
            row = rows[index]
            assert row is not None
            text, num = len(row.tokens), len(of_row)
            lengths[index, :num] = [text + accepted for accepted, _ in of_row]
            paths[0, index, :num] = self._calls.known([token for _, token in of_row])
            row.branch_laws = []
            if not row.entry.params.chooses_in_graph(text):
                by_rule.append((index, row))
        laws: dict[int, list[list[SparseLaw]]] = {
            index: [[] for _ in forks[index]] for index, _ in by_rule
        }
        self._steps.clear()
        for depth in range(num_draft):
            step = self._step(count, num_branches, depth)
            step.tokens[:] = paths[depth]
            np.add(lengths, depth, out=step.positions)
            step.write_at[:] = self._calls.layout.scratch_row(depth)
            branch_mask(step.mask, self._calls.layout, lengths, depth)
            step.logit_rows[:] = np.arange(num_branches)
            step.run()
            paths[depth + 1] = step.sample
            for index, row in by_rule:
                self._choose(step, index, row, depth, num_prepared, laws[index])
        for index, row in by_rule:
            row.branch_laws = [tuple(of_branch) for of_branch in laws[index]]

    def tokens(self, index: int, num_forks: int) -> list[tuple[int, ...]]:
        """The K tokens drafted behind each fork of a row."""
        drafted = self._paths[1 : 1 + self._depth, index, :num_forks]
        return list(map(tuple, drafted.T.tolist()))

    def logits(self, index: int, branch: int, count: int) -> list[np.ndarray]:
        """What a branch's first ``count`` tokens were drafted from, [V] each; valid until the next
        round's steps."""
        return [step.logits[index, branch] for step in self._steps[:count]]

    def laws(self, row: DraftRow, branch: int, count: int) -> Laws | None:
        """The laws of the first ``count`` of them; None where the rule needs none."""
        return (row.branch_laws[branch][:count] or None) if row.branch_laws else None

    def commit(self, index: int, row: DraftRow, branch: int, count: int) -> None:
        """Move a branch's first ``count`` rows from scratch to the trunk, and keep its logits."""
        layout = self._calls.layout
        self._calls.session.copy_rows(
            row.slot.index, layout.branch_rows(branch, count), layout.trunk_row(row.trunk)
        )
        row.trunk += count
        for step in self._steps[:count]:
            row.keep_logits(step.logits[index, branch : branch + 1])

    def _choose(
        self,
        step: Step,
        index: int,
        row: DraftRow,
        depth: int,
        num_prepared: Sequence[int],
        laws: list[list[SparseLaw]],
    ) -> None:
        samples: list[int] = step.sample[index].tolist()
        chosen = self._paths[depth + 1, index]
        # The first token of a branch is an outcome's bonus token, or of the proposal itself.
        ahead = 0 if row.state is RowState.WAITING else 1
        for branch, of_branch in enumerate(laws):
            length = int(self._lengths[index, branch])
            token, law = self._calls.choose(
                step.logits[index, branch],
                samples[branch],
                row.entry.params,
                position=length + depth + 1,
                block_start=length + ahead,
                num_prepared=num_prepared[depth + 1 - ahead],
            )
            chosen[branch] = token
            if law is not None:
                of_branch.append(law)

    def _step(self, num_rows: int, num_branches: int, depth: int) -> Step:
        # Depths keep their own outputs: the winner's logits are wanted after the last of them.
        shape = CallShape(0, num_rows, num_branches, num_branches, copy=1 + depth)
        step = self._calls.session.prepare(shape)
        self._steps.append(step)
        return step
