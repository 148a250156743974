"""The draft's side: draft K tokens, or prepare K tokens for each likely outcome ahead of time.

One graph serves every call; only its width and mask differ. ``runtime.workers.draft_row`` has the
table of what a row's trunk holds after each event. A round of ``ssd``, for all rows together:

    prepare   root pass, forks, branch steps         while the target verifies
    adopt     outcomes in, proposals out             between two verifications: fast
    commit    winning branches move to the trunk,    while the target verifies again
              statistics learn from the outcomes

What a row does after a miss is decided in ``adopt``, without the host:

    zero      it proposes nothing
    lookup    it proposes what its own text repeats, or nothing
    jit       no row has a proposal: all missing ones are drafted at once, the target waits;
              else it sits rounds out (SKIP) and ``prepare`` drafts it: no hit waits for it

By the plan's drafter a lookup stands in front of all that: of what was prepared for the outcome, of
each of these fallbacks, and of drafting between two verifications (``sd``), row by row, where it
promises more (``runtime.spec.lookup``). Rows that copy need no drafting. Rounds of lookups
alone are no work of this side but a rest (``runtime.workers.lookup``).

Each of these calls is told the round's plan; K, W, fallback and drafter may be others from round to
round. A change of mode begins with ``resume``. While the draft rests texts go on without
it, so ``resume`` is told them, and ``catch_up`` feeds what the trunks lack, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from runtime.backends.api import KeepingSession
from runtime.sampling.api import Rule
from runtime.spec.cache import SpeculationCache
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.length import Lengths
from runtime.spec.lookup import num_common
from runtime.spec.outcome import Outcome, Prepared
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.ahead import Ahead
from runtime.workers.cutter import Cutter
from runtime.workers.draft_row import DraftRow, RowState, Seen
from runtime.workers.draft_texts import index_texts
from runtime.workers.draft_trunks import DraftTrunks
from runtime.workers.entry import Resumed
from runtime.workers.just_in_time import draft_at_once
from runtime.workers.mailbox import Kind, Mailbox


class DraftWorker(DraftTrunks):
    """Drafting for a batch: row i of a call is slot i. All methods but the constructor run as
    work on the draft's stream."""

    def __init__(
        self,
        session: KeepingSession,
        rule: Rule,
        mailbox: Mailbox,
        *,
        num_draft: int,
        num_branches: int,
        statistics: OutcomeStatistics,
        fallback: Fallback = Fallback.ZERO,
        lengths: Lengths | None = None,
        drafter: Drafter = Drafter.MODEL,
        alpha: float | None = None,
    ) -> None:
        """K and W at most, and with ``fallback`` and ``drafter`` what a round has whose plan says
        nothing else. With ``lengths`` proposals end where the draft is unsure of itself (coupled
        rule only). ``alpha`` is the draft maker's share of tokens that are accepted.

        Raises CapacityError where they are beyond what the engine was built for."""
        plan = RoundPlan("ssd", num_draft, num_branches, fallback, drafter)
        super().__init__(session, rule, mailbox, plan, alpha)
        self.num_branches = num_branches
        self.statistics = statistics
        self.cache = SpeculationCache()
        self.round = 0
        self._cutter = (
            None if lengths is None else Cutter(lengths, session.vocab_map, mailbox.num_rows)
        )
        self._ahead = Ahead(
            self._calls,
            statistics,
            num_rows=mailbox.num_rows,
            num_draft=num_draft,
            num_branches=num_branches,
        )
        self._predicted_hits = 0.0
        self._num_predicted = 0
        self._worked = (0.0, 0.0)  # when the last work ahead of an outcome began and ended

    def reset(self, keeps: int | None = None) -> None:
        """Forget every text and go back to the fewest cache rows; where free slots keep something,
        to those that hold ``keeps`` positions."""
        super().reset(keeps)
        self.cache = SpeculationCache()

    def resume(self, texts: Sequence[Resumed]) -> None:
        """Go on after a rest, or in another mode, with all texts as they are now: proposals and
        what was prepared are void, and no row waits for drafts any more."""
        self.cache = SpeculationCache()
        super().resume(texts)

    def draft(self, plan: RoundPlan | None = None) -> None:
        """Propose up to K tokens for every row (``sd``): copied ones, or drafted one after the
        other. Where all rows copy no engine runs."""
        started = perf_counter()
        plan = self._set(plan)
        rows = self._running
        if plan.drafter is Drafter.BOTH:
            index_texts(rows)
            rows = [row for row in rows if not self._copies_first(row, plan)]
        self._take_in(rows)
        draft_at_once(self._calls, self.rows[: self._num_rows], rows, None, self._cutter)
        self._propose()
        self._note_times(exposed_s=perf_counter() - started, worked_s=perf_counter() - started)

    def _copies_first(self, row: DraftRow, plan: RoundPlan) -> bool:
        """Propose a copy in front of what the model would have to draft now."""
        other = self.choice.model_worth(ProposalKind.JIT, row.room, waits=True)
        return self._look_up(row, other, plan.floor)

    def follow(self, plan: RoundPlan | None = None) -> None:  # noqa: ARG002 - others need it
        """Take in the outcomes and propose nothing (``sd``)."""
        for _ in self._take_outcomes():
            pass

    def prepare(self, plan: RoundPlan | None = None) -> None:
        """Root pass, forks and K branch steps: fill the speculation cache for this round."""
        started = perf_counter()
        plan = self._set(plan)
        rows = self.rows[: self._num_rows]
        self._take_in(self._running)
        self._ahead.prepare(rows, self.cache, self.round, plan)
        if plan.drafter is not Drafter.MODEL or plan.fallback is Fallback.LOOKUP:
            index_texts(rows)
        self._worked = (started, perf_counter())

    def adopt(self, plan: RoundPlan | None = None) -> None:
        """Take in the outcomes: a hit's tokens become the next proposal, a miss falls back; a copy
        that promises more goes before both.

        ``plan`` is the one that was prepared under. A hit's cache rows are moved later, by
        ``commit``.
        """
        plan = plan or self.plan
        drafted = [row for row in self.rows if row is not None and row.state is RowState.WAITING]
        missing = []
        for row, prepared in self._take_outcomes():
            if self._copies_instead(row, prepared, plan):
                continue
            if prepared is None:
                missing.append(row)
            else:
                self._take_hit(row, prepared)
        for row in drafted:
            row.state = RowState.RUNNING
        begun, ended = self._worked
        decided = float(self.mailbox.figures.array[mail.DECIDED_AT])
        exposed_s = max(0.0, ended - max(begun, decided))
        worked_s = ended - begun
        waited = perf_counter()
        if missing and plan.fallback is Fallback.JIT:
            self._draft_again(missing, plan)
            exposed_s += perf_counter() - waited
            worked_s += perf_counter() - waited
        self._propose()
        self._note_times(exposed_s=exposed_s, worked_s=worked_s)
        self.round += 1

    def commit(self) -> None:
        """Move each winning branch's rows from scratch to the trunk and keep its logits; learn
        from the outcomes."""
        learnt = []
        for index, row in enumerate(self.rows[: self._num_rows]):
            if row is None:
                continue
            if row.winner is not None:
                self._ahead.branches.commit(index, row, row.winner, row.num_won)
                row.winner = None
            if row.seen is not None and row.predicted is not None:
                learnt.append((row.seen, row.predicted, row.rank))
            row.seen = row.predicted = None
        for left, (seen, predicted, rank) in enumerate(learnt, start=1 - len(learnt)):
            self._observe(seen, predicted, rank, ends_round=left == 0)

    def _take_outcomes(self) -> Iterator[tuple[DraftRow, Prepared | None]]:
        """Each verified row's text goes on; yields the rows that go on with what was prepared for
        their outcome."""
        for row, emitted, accepted in self._outcomes():
            found = Outcome(accepted, emitted[-1])
            prepared = self.cache.take(row.slot, self.round, found)
            row.seen = (row.source, len(row.proposal), found, prepared is not None)
            row.rank = None if row.predicted is None else _rank(row.candidates, found)
            if self._cutter is not None:
                self._cutter.judged(row, accepted)
            if self._go_on(row, emitted, accepted):
                yield row, prepared

    def _copies_instead(self, row: DraftRow, prepared: Prepared | None, plan: RoundPlan) -> bool:
        """Propose a copy where it promises more than what the row would go on with."""
        is_last = prepared is None and plan.fallback is Fallback.LOOKUP
        if plan.drafter is Drafter.MODEL and not is_last:
            return False
        other = 0.0
        if prepared is not None:
            count = min(row.room, len(prepared.tokens))
            other = self.choice.model_worth(ProposalKind.HIT, count)
        elif plan.fallback is Fallback.JIT:
            other = self.choice.model_worth(ProposalKind.JIT, row.room, waits=True)
        if not self._look_up(row, other, plan.floor):
            return False
        if prepared is not None:
            row.kind = Kind.OVERRULED
            # The branch has fed t*, and as many of its tokens as the copy has, too.
            row.winner = prepared.branch
            shared = num_common(row.proposal, prepared.tokens)
            row.num_won = min(shared + 1, len(row.proposal))
        return True

    def _take_hit(self, row: DraftRow, prepared: Prepared) -> None:
        row.kind = Kind.HIT
        row.proposal = prepared.tokens[: row.room]
        if self._cutter is not None:
            row.proposal = self._cutter.cut(row, self._ahead.branches, prepared.branch)
        if row.proposal:
            row.winner, row.num_won = prepared.branch, len(row.proposal)
            row.laws = self._ahead.branches.laws(row, prepared.branch, len(row.proposal))

    def _draft_again(self, missing: Sequence[DraftRow], plan: RoundPlan) -> None:
        """``jit``: at once where no row has a proposal, else beside the next verifications."""
        missing = [row for row in missing if row.room]
        if any(row is not None and row.proposal for row in self.rows):
            for row in missing:
                row.state = RowState.WAITING
        else:
            laws = self.statistics.plan(ProposalKind.JIT, plan.num_draft, plan.num_branches)
            batch = self.rows[: self._num_rows]
            draft_at_once(self._calls, batch, missing, laws.counts, self._cutter)

    def _observe(self, seen: Seen, predicted: float, rank: int | None, *, ends_round: bool) -> None:
        source, num_drafted, outcome, hit = seen
        self.statistics.observe(
            kind=source,
            num_drafted=num_drafted,
            accepted=outcome.accepted,
            rank=rank,
            hit=hit,
            predicted=predicted,
            ends_round=ends_round,
        )
        self._predicted_hits += predicted
        self._num_predicted += 1

    def _note_times(self, *, exposed_s: float, worked_s: float) -> None:
        figures = self.mailbox.draft_figures.array
        figures[mail.DRAFT_S] += worked_s
        figures[mail.EXPOSED_S] += exposed_s
        figures[mail.PREDICTED_HITS] = self._predicted_hits
        figures[mail.NUM_PREDICTED] = self._num_predicted


def _rank(candidates: Sequence[list[int]], outcome: Outcome) -> int | None:
    """Where the bonus token stands among the candidates for its place."""
    known = candidates[outcome.accepted]
    return known.index(outcome.bonus) if outcome.bonus in known else None
