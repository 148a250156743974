"""What every side that drafts keeps: its rows' texts, the messages, and lookups in the texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runtime.kv.slots import SlotRef
from runtime.spec.lookup import MODELS, SourceChoice
from runtime.spec.ngram import NgramIndex
from runtime.spec.plan import RoundPlan
from runtime.workers import mailbox as mail
from runtime.workers.draft_row import DraftRow, RowState
from runtime.workers.entry import Resumed, require_lease
from runtime.workers.mailbox import Kind, Mailbox


class DraftTexts:
    """Rows by slot. ``plan``: K and W at most, and what a round has whose plan says nothing else.
    ``choice`` learns from every round in which something was looked up."""

    def __init__(self, mailbox: Mailbox, plan: RoundPlan, choice: SourceChoice) -> None:
        self.mailbox = mailbox
        self.plan = plan
        self.rows: list[DraftRow | None] = [None] * mailbox.num_rows
        self.choice = choice
        self._num_rows = 0

    def retire(self, slot: SlotRef, num_kept: int = 0) -> None:  # noqa: ARG002 - caches keep
        """The slot's text has ended, or is wanted no more."""
        self._row(slot)
        self.rows[slot.index] = None
        self._count_rows()

    def resume(self, texts: Sequence[Resumed]) -> None:
        """Go on after a rest, or in another mode, with all texts as they are now: proposals are
        void, and no row waits for drafts any more."""
        for text in texts:
            row = self._row(text.slot)
            row.resume(text.tokens, text.num_fed, is_running=text.is_running)
        self._count_rows()

    def _outcomes(self) -> Iterator[tuple[DraftRow, list[int], int]]:
        """(row, emitted tokens, accepted count) of each row that was verified."""
        cells: list[list[int]] = self.mailbox.outcomes.array[: self._num_rows].tolist()
        for row, outcome in zip(self.rows, cells, strict=False):
            if row is None or row.state is not RowState.RUNNING:
                continue
            if outcome[mail.GENERATION] != row.slot.generation:
                require_lease(SlotRef(row.slot.index, outcome[mail.GENERATION]), row.slot)
            accepted = outcome[mail.ACCEPTED]
            yield row, outcome[mail.EMITTED : mail.EMITTED + accepted + 1], accepted

    def _go_on(self, row: DraftRow, emitted: list[int], accepted: int) -> bool:
        """The row's text goes on; False where it has ended."""
        if row.match.length:
            self.choice.see_copy(row.match, emitted)
            if row.source in MODELS:
                self.choice.see_model(row.source, len(row.proposal), accepted)
        return row.follow(emitted, accepted)

    def _look_up(self, row: DraftRow, other: float, floor: float) -> bool:
        """Propose a copy from the row's text if it promises as many accepted tokens as ``other``
        does; False, and nothing is proposed, if not."""
        assert row.ngrams is not None
        row.match = row.ngrams.find(row.room)
        tokens = self.choice.choose(row.match, other, floor)
        if tokens:
            row.take_copy(tokens)
        return bool(tokens)

    def _propose(self) -> None:
        for index, row in enumerate(self.rows[: self._num_rows]):
            if row is not None and row.state is not RowState.PROMPT:
                kind = Kind.SKIP if row.state is RowState.WAITING else row.kind
                self.mailbox.propose(
                    index, row.slot.generation, kind, row.proposal, row.laws, row.rank
                )

    def _set(self, plan: RoundPlan | None) -> RoundPlan:
        plan = plan or self.plan
        for row in self.rows:
            if row is not None:
                row.num_draft = plan.num_draft
        return plan

    @property
    def _running(self) -> list[DraftRow]:
        return [row for row in self.rows if row is not None and row.state is RowState.RUNNING]

    def _row(self, slot: SlotRef) -> DraftRow:
        row = self.rows[slot.index]
        require_lease(None if row is None else row.slot, slot)
        assert row is not None
        return row

    def _run_if_fed(self, row: DraftRow) -> None:
        if row.num_fed == len(row.entry.prompt) - 1:
            row.state = RowState.RUNNING
            self._count_rows()

    def _count_rows(self) -> None:
        """Rows of the next calls: up to the last slot whose text runs."""
        self._num_rows = 1 + max(
            (
                index
                for index, row in enumerate(self.rows)
                if row is not None and row.state is not RowState.PROMPT
            ),
            default=-1,
        )


def index_texts(rows: Iterable[DraftRow | None]) -> None:
    """Make what can be looked up in of each text that has none: about a microsecond a token. Not
    before something is looked up, since an index is some hundred bytes a token."""
    for row in rows:
        if row is not None and row.ngrams is None:
            row.ngrams = NgramIndex(row.tokens)
