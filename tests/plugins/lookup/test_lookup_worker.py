"""The lookup does what the draft worker does: cut hits, zero drafts after a miss, dummies."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engines.manifest import KvLayout
from engines.tensors import DType
from plugins.lookup import reference
from plugins.lookup.reference import Sizes, lookup
from runtime.kv.layout import SlotLayout
from runtime.workers import mailbox
from runtime.workers.draft_calls import DraftCalls
from runtime.workers.draft_row import RowState
from runtime.workers.mailbox import EMITTED, PROPOSED, Kind
from tests.helpers.lookups import Arrays, Batch, random_sizes

FRESHNESS = "generation", "round"


def pad(tokens: list[int], sizes: Sizes) -> list[int]:
    return tokens + [0] * (sizes.num_draft + 1 - len(tokens))


def expected_by(batch: Batch) -> list[dict[str, Any]]:
    """What the worker makes of each row: `adopt`, `commit`, and the root pass it would make."""
    worker, sizes = batch.worker, batch.sizes
    outcomes = batch.mailbox.outcomes.array[:, : EMITTED + sizes.num_draft + 1].tolist()
    worker.adopt()
    for row in worker.rows:
        if row is not None and row.state is RowState.OVER:
            row.trunk = 0  # the kernels keep nothing of a text that is over
    layout = SlotLayout(batch.session.manifest.kv, sizes.num_branches)
    target = SlotLayout(KvLayout(1, 1, 1, DType.FLOAT32, sizes.target_scratch, 99), 0)
    found = []
    for index, row in enumerate(worker.rows):
        is_active = row is not None and row.state is RowState.RUNNING
        frontier = 0 if row is None else row.trunk
        start = len(row.tokens) - 1 if is_active else frontier
        proposal = row.proposal if is_active else ()
        found.append(
            {
                "outcome": [*outcomes[index], *learnt_by(batch, index)],
                "round": worker.round,
                "active": is_active,
                "length": start + 1,
                "kind": row.kind if is_active else Kind.NONE,
                "num_draft": len(proposal),
                "verify_tokens": pad([row.tokens[-1] if is_active else 0, *proposal], sizes),
                "verify_positions": list(range(start, start + sizes.num_draft + 1)),
                "verify_write_at": target.trunk_row(start),
                "winner": -1 if row is None or row.winner is None else row.winner,
                "commit_at": layout.trunk_row(frontier),
            }
        )
    worker.commit()
    fed = [
        row.unfed if each["active"] else [] for row, each in zip(worker.rows, found, strict=True)
    ]
    if any(fed):  # without a running text there is no root pass
        root = DraftCalls(batch.session, batch.worker.rule).feed(worker.rows, fed, 1, 0)
        for index, each in enumerate(found):
            each["root_tokens"] = root.tokens[index].tolist()
            each["root_positions"] = root.positions[index].tolist()
            each["root_write_at"] = root.write_at[index]
    return found


def learnt_by(batch: Batch, index: int) -> list[int]:
    """What the worker tells its statistics of a row, as the end of a message has it."""
    row, before = batch.worker.rows[index], batch.arrays
    if row is None or row.seen is None:
        return [-1, -1, 0]
    _, _, outcome, hit = row.seen
    is_fresh = all(before[f"cache_{each}"][index] == before[each][index] for each in FRESHNESS)
    found = row.candidates[outcome.accepted]
    return [
        int(hit) if is_fresh and before["cache_branches"][index] else -1,
        found.index(outcome.bonus) if outcome.bonus in found else -1,
        before["status"][index],
    ]


def check_messages(batch: Batch, before: Arrays, after: Arrays, row: int) -> None:
    """What the worker hands on is what the arrays say: proposal, committed rows, spent cache."""
    proposal = batch.mailbox.proposals.array[row, : PROPOSED + batch.sizes.num_draft].tolist()
    head = [after[name][row] for name in ("kind", "num_draft")]
    assert proposal == [before["generation"][row], *head, *after["verify_tokens"][row, 1:]]
    num_draft, winner = int(after["num_draft"][row]), int(after["winner"][row])
    copied = batch.session.copies.get(row)
    assert (winner >= 0) == (num_draft > 0) == (copied is not None)
    if copied is not None:
        layout = SlotLayout(batch.session.manifest.kv, batch.sizes.num_branches)
        assert copied == (layout.branch_rows(winner, num_draft), after["commit_at"][row])
    assert after["cache_branches"][row] == 0
    made_in = int(before["round"][row])
    assert batch.worker.cache.take(batch.lease(row), made_in, batch.outcome(row)) is None


@given(st.integers(0, 2**32))
def test_the_reference_is_what_the_draft_worker_does(seed: int) -> None:
    """In every field, for texts that go on and end, prompts that are being fed, and empty slots."""
    rng = np.random.default_rng(seed)
    sizes = random_sizes(rng)
    batch = Batch(rng, int(rng.integers(1, 5)), sizes)
    before, after = batch.arrays, lookup(batch.arrays, sizes)
    assert set(after) == set(reference.OUTPUTS)
    for row, expected in enumerate(expected_by(batch)):
        assert {name: after[name][row].tolist() for name in expected} == expected, f"row {row}"
        if before["active"][row]:
            check_messages(batch, before, after, row)
        else:
            assert after["cache_branches"][row] == before["cache_branches"][row]


def test_kinds_and_columns_are_those_of_the_mailbox() -> None:
    """The host reads a lookup's message as it reads one of the mailbox."""
    for name in ("GENERATION", "KIND", "COUNT", "ACCEPTED", "EMITTED"):
        assert getattr(reference, name) == getattr(mailbox, name)
    assert all(kind == Kind[kind.name] for kind in reference.Kind)
