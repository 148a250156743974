"""Drafting just in time: K tokens of some rows at once, one call a token."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.sampling.proposal import SparseLaw
from runtime.workers.cutter import Cutter
from runtime.workers.draft_calls import DraftCalls
from runtime.workers.draft_row import DraftRow
from runtime.workers.mailbox import Kind


def draft_at_once(
    calls: DraftCalls,
    batch: Sequence[DraftRow | None],
    rows: Sequence[DraftRow],
    num_prepared: Sequence[int] | None,
    cutter: Cutter | None = None,
) -> None:
    """Give each of ``rows`` a proposal of the tokens it has room for, or of those that ``cutter``
    finds worth it.

    ``batch`` holds the rows of slots 0, 1, ...: a single row is fed alone, several in one call
    with all others as dummies, so that the number of call shapes stays small. ``num_prepared[d]``
    outcomes will be prepared for a rejection of token d; None: nothing will be prepared from
    these drafts, and their logits need not be kept.
    """
    if not rows:
        return
    first = rows[0].slot.index if len(rows) == 1 else 0
    batch = batch[first : first + 1] if len(rows) == 1 else batch
    chosen = {row.slot for row in rows}
    laws: dict[int, list[SparseLaw]] = {row.slot.index: [] for row in rows}
    for row in rows:
        row.forget_proposal()
        if cutter is not None:
            cutter.begin(row)
    for depth in range(max(row.room for row in rows)):
        fed = [
            row.unfed if row is not None and row.slot in chosen and depth < row.room else []
            for row in batch
        ]
        if not any(fed):
            break
        step = calls.feed(batch, fed, 1, first)
        samples: list[int] = step.sample[:, 0].tolist()
        for place, held in enumerate(batch):
            if held is None or not fed[place]:
                continue
            row = held
            text = len(row.tokens)
            token, law = calls.choose(
                step.logits[place, 0],
                samples[place],
                row.entry.params,
                position=text + depth,
                block_start=text,
                num_prepared=0 if num_prepared is None else num_prepared[depth],
            )
            if cutter is not None:
                logits, may_drop = step.logits[place, 0], num_prepared is None
                if not cutter.takes(row, logits, token, may_drop=may_drop):
                    chosen.discard(row.slot)
                    continue
                if not cutter.goes_on(row):
                    chosen.discard(row.slot)
            row.proposal = (*row.proposal, token)
            if law is not None:
                laws[row.slot.index].append(law)
            if num_prepared is not None:
                row.keep_logits(step.logits[place])
    for row in rows:
        row.kind = Kind.JIT if row.proposal else Kind.NONE
        row.laws = tuple(laws[row.slot.index]) or None
