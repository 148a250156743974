"""Drafting ahead of an outcome: K tokens for each likely one, while the target verifies.

Root pass, forks, branch steps; the drafted tokens go to the speculation cache. A row that sits the
round out gets its proposal in the same calls (``runtime.workers.branches``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.spec.cache import SpeculationCache
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome import Outcome, Prepared
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.branches import Branches, Fork
from runtime.workers.draft_calls import DraftCalls
from runtime.workers.draft_row import DraftRow, RowState
from runtime.workers.mailbox import Kind


class Ahead:
    """What the draft prepares in a round, for all rows together."""

    def __init__(
        self,
        calls: DraftCalls,
        statistics: OutcomeStatistics,
        *,
        num_rows: int,
        num_draft: int,
        num_branches: int,
    ) -> None:
        self.branches = Branches(calls, num_rows, num_draft, num_branches)
        self._calls = calls
        self._statistics = statistics

    def prepare(
        self,
        rows: Sequence[DraftRow | None],
        cache: SpeculationCache,
        round_number: int,
        plan: RoundPlan,
    ) -> None:
        """Fill ``cache`` with this round's likely outcomes, for the rows of slots 0, 1, ..."""
        open_rows = {
            index: row for index, row in enumerate(rows) if row is not None and _needs_drafts(row)
        }
        if not open_rows:
            return
        self._root(rows, open_rows, plan.num_draft)
        width = plan.num_branches
        forks = {index: self._fork(row, width) for index, row in open_rows.items()}
        branches = self.branches
        after_hit = self._statistics.plan(ProposalKind.HIT, plan.num_draft, width)
        branches.run(rows, forks, after_hit.counts, num_draft=plan.num_draft, num_branches=width)
        for index, row in open_rows.items():
            paths = branches.tokens(index, len(forks[index]))
            if row.state is RowState.WAITING:
                self._finish_waiting(index, row, paths[0])
                continue
            prepared = {
                Outcome(accepted, token): Prepared(branch, paths[branch])
                for branch, (accepted, token) in enumerate(forks[index])
            }
            cache.store(row.slot, round_number, prepared)

    def _root(
        self, rows: Sequence[DraftRow | None], open_rows: Mapping[int, DraftRow], num_draft: int
    ) -> None:
        """Bring the trunks up to the whole proposals, and the logits after each of their tokens."""
        count = 1 + max(open_rows)
        # All that the round needs, ``commit`` included: growing moves the caches.
        self._calls.bind(
            max(len(row.tokens) + len(row.proposal) for row in open_rows.values()) + num_draft
        )
        wanted = {index: len(row.proposal) + 1 - row.num_logits for index, row in open_rows.items()}
        num_logits = max(wanted.values())
        fed = [open_rows[index].unfed if index in open_rows else [] for index in range(count)]
        step = self._calls.feed(rows[:count], fed, num_logits, 0)
        for index, row in open_rows.items():
            row.keep_logits(step.logits[index, num_logits - wanted[index] :])
            if row.state is RowState.WAITING:
                text = len(row.tokens)
                token, law = self._calls.choose(
                    step.logits[index, -1],
                    int(step.sample[index, -1]),
                    row.entry.params,
                    position=text,
                    block_start=text,
                    num_prepared=0,
                )
                row.proposal, row.laws = (token,), None if law is None else (law,)

    def _fork(self, row: DraftRow, num_branches: int) -> list[Fork]:
        """The branches to draft: (accepted count, first token), likeliest outcomes first.

        Of a row that waits for drafts: its own next token alone.
        """
        if row.state is RowState.WAITING:
            return [(0, row.proposal[0])]
        drafted, text = len(row.proposal), len(row.tokens)
        plan = self._statistics.plan(row.source, drafted, num_branches)
        row.predicted = plan.hit_rate
        row.candidates = [
            self._calls.rule.bonus_candidates(
                row.logits[accepted],
                row.entry.params,
                text + accepted,
                self._statistics.num_ranks,
                exclude=row.proposal[accepted] if accepted < drafted else None,
                ids_map=self._calls.session.vocab_map,
            ).tolist()
            for accepted in range(drafted + 1)
        ]
        return [
            (accepted, token)
            for accepted in range(drafted + 1)
            for token in row.candidates[accepted][: plan.counts[accepted]]
        ]

    def _finish_waiting(self, index: int, row: DraftRow, drafted: tuple[int, ...]) -> None:
        """The one branch of a waiting row is its proposal: its rows belong to the trunk."""
        count = row.room
        laws = self.branches.laws(row, 0, count - 1) or ()
        row.proposal = (*row.proposal, *drafted)[:count]
        row.laws = (*(row.laws or ()), *laws) or None
        row.kind = Kind.JIT
        self.branches.commit(index, row, 0, count - 1)


def _needs_drafts(row: DraftRow) -> bool:
    """Whether the text can outlive this round: behind its end nothing is drafted."""
    if row.state is RowState.WAITING:
        return True
    return row.state is RowState.RUNNING and len(row.tokens) + 1 < row.entry.limit
