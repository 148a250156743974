"""The lookup: its meaning is the draft worker's, and the kernel has that meaning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from engines.manifest import KvLayout
from plugins.lookup import kernel, reference
from plugins.lookup.reference import Sizes, lookup
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.kv.slots import SlotRef
from runtime.sampling.params import SamplingParams
from runtime.spec.outcome import Outcome, Prepared
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftRow, DraftWorker
from runtime.workers.mailbox import Mailbox
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of

Arrays = dict[str, np.ndarray[Any, Any]]


def random_sizes(rng: np.random.Generator) -> Sizes:
    branches, drafts = int(rng.integers(1, 70)), int(rng.integers(0, 17))
    return Sizes(
        num_branches=branches,
        num_draft=drafts,
        max_len=int(rng.integers(2, 40)),
        draft_vocab=int(rng.integers(1, 12)),
        target_scratch=int(rng.integers(0, 3)),
        draft_scratch=branches * drafts,
    )


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


def test_the_kernel_is_the_reference_in_1000_cases(compiled) -> None:
    """Also for threads that outnumber the branches, and blocks that take several rows."""
    for index in range(NUM_CASES):
        rng = generator(index)
        case = kernel.make_case(rng, int(rng.integers(1, 9)), random_sizes(rng))
        assert errors_of(compiled, kernel.ENTRY, case, grid_of(index)) == [], f"case {index}"


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 6))
def test_the_grid_does_not_matter(compiled, seed: int, num_threads: int, num_blocks: int) -> None:
    rng = np.random.default_rng(seed)
    case = kernel.make_case(rng, int(rng.integers(1, 6)), random_sizes(rng))
    assert errors_of(compiled, kernel.ENTRY, case, (num_threads, num_blocks, 2)) == []


# The meaning, against the worker that it is taken from.


class Batch:
    """One batch as the draft worker keeps it, and the same as arrays."""

    def __init__(self, rng: np.random.Generator, num_rows: int, sizes: Sizes) -> None:
        self.sizes = sizes
        self.arrays = kernel.random_arrays(rng, num_rows, sizes)
        # The worker has one round for all rows, and a slot's lease is above 0.
        self.arrays["round"][:] = rng.integers(1, 9)
        self.arrays["cache_round"][:] = self.arrays["round"] - (rng.random(num_rows) < 0.2)
        self.arrays["cache_depth"][:] = sizes.num_draft
        # The worker's own dummies have the shape that a lookup gives them.
        self.arrays["length"][~self.arrays["active"]] = 1
        self.worker = self._worker()

    def _worker(self) -> DraftWorker:
        arrays, sizes = self.arrays, self.sizes
        num_rows = len(arrays["length"])
        trunk_rows = sizes.max_len + sizes.num_draft
        session = SimpleNamespace(
            manifest=SimpleNamespace(
                limits=SimpleNamespace(max_len=sizes.max_len, max_branches=sizes.num_branches),
                kv=KvLayout(1, 1, 1, "float32", sizes.draft_scratch, trunk_rows),
                model=SimpleNamespace(vocab_size=sizes.draft_vocab),
            ),
            copy_rows=lambda *_: None,
            prepare=lambda _: SimpleNamespace(logits=np.zeros((1, sizes.num_branches, 1))),
        )
        mailbox = Mailbox(HostDevice(), num_rows, sizes.num_draft)
        worker = DraftWorker(
            session,
            SimpleNamespace(),
            mailbox,
            num_draft=sizes.num_draft,
            num_branches=sizes.num_branches,
            statistics=OutcomeStatistics(sizes.num_draft, sizes.num_branches),
        )
        worker.round = int(arrays["round"][0])
        for row in range(num_rows):
            self._add_row(worker, row)
        return worker

    def _add_row(self, worker: DraftWorker, row: int) -> None:
        arrays = self.arrays
        lease = SlotRef(row, int(arrays["generation"][row]))
        drafted = int(arrays["num_draft"][row])
        text = [0] * (int(arrays["length"][row]) - 1) + [int(arrays["verify_tokens"][row, 0])]
        proposal = tuple(arrays["verify_tokens"][row, 1 : 1 + drafted].tolist())
        state = DraftRow(lease, SamplingParams(), text, len(text) + drafted, proposal)
        state.active = bool(arrays["active"][row])
        state.laws = [()] * self.sizes.num_branches
        worker.rows.append(state)
        accepted = int(arrays["accepted"][row])
        outcome = Outcome(accepted, int(arrays["bonus"][row]))
        worker.mailbox.decide(row, proposal, outcome)
        prepared = {
            Outcome(
                int(arrays["cache_accepted"][row, branch]), int(arrays["cache_bonus"][row, branch])
            ): Prepared(branch, tuple(arrays["cache_tokens"][row, branch].tolist()))
            for branch in range(arrays["cache_branches"][row])
        }
        made_for = SlotRef(row, int(arrays["cache_generation"][row]))
        worker.cache.store(made_for, int(arrays["cache_round"][row]), prepared)


def expected_by(batch: Batch) -> list[dict[str, Any]]:
    """What the worker makes of each row: `adopt`, `commit`, and what it would feed next."""
    worker, sizes = batch.worker, batch.sizes
    emitted = [
        worker.mailbox.emitted(index) if row.active else [] for index, row in enumerate(worker.rows)
    ]
    worker.adopt()
    found = []
    for index, row in enumerate(worker.rows):
        commit_at = worker.layout.trunk_row(row.trunk)
        winner = -1 if row.winner is None else row.winner
        length = len(row.tokens)
        start = length - 1
        target = SlotLayout(KvLayout(1, 1, 1, "float32", sizes.target_scratch, 99), 0)
        found.append(
            {
                "winner": winner,
                "commit_at": commit_at,
                "emitted": emitted[index],
                "active": row.active,
                "length": length,
                "verify_tokens": [row.tokens[-1], *row.proposal],
                "verify_positions": start,
                "verify_write_at": target.trunk_row(start),
                "num_draft": len(row.proposal),
                "round": worker.round,
            }
        )
    worker.commit()
    for row, values in zip(worker.rows, found, strict=True):
        [token] = worker._known(row.unfed)  # the root pass is one token wide
        values["root_tokens"] = [token]
        values["root_positions"] = [row.trunk]
        values["root_write_at"] = worker.layout.trunk_row(row.trunk)
    return found


@given(st.integers(0, 2**32))
def test_the_reference_is_what_the_draft_worker_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = random_sizes(rng)
    batch = Batch(rng, int(rng.integers(1, 5)), sizes)
    after = lookup(batch.arrays, sizes)
    for row, expected in enumerate(expected_by(batch)):
        emitted = expected.pop("emitted")
        assert after["num_emitted"][row] == len(emitted)
        assert after["emitted"][row].tolist() == pad(emitted, sizes)
        expected["verify_tokens"] = pad(expected["verify_tokens"], sizes)
        start = expected["verify_positions"]
        expected["verify_positions"] = list(range(start, start + sizes.num_draft + 1))
        assert {name: after[name][row].tolist() for name in expected} == expected, f"row {row}"


def pad(tokens: list[int], sizes: Sizes) -> list[int]:
    return tokens + [0] * (sizes.num_draft + 1 - len(tokens))


SIZES = Sizes(3, 2, 100, 50, 0, 6)


def one_row(**changes: Any) -> Arrays:
    """A row that hits branch 1, but for ``changes``."""
    values = {
        "accepted": 1,
        "bonus": 9,
        "cache_branches": 3,
        "cache_depth": 2,
        "cache_generation": 4,
        "cache_round": 7,
        "cache_accepted": [0, 1, 2],
        "cache_bonus": [9, 9, 9],
        "cache_tokens": [[11, 12], [13, 14], [15, 16]],
        "generation": 4,
        "round": 7,
        "active": True,
        "length": 20,
        "verify_tokens": [5, 6, 8],
        "num_draft": 2,
        **changes,
    }
    return {
        name: np.asarray([values.get(name, np.zeros(shape[1:]))], dtype).reshape(shape)
        for name, (dtype, shape) in reference.shapes(1, SIZES).items()
    }


def test_a_hit_becomes_the_next_calls() -> None:
    after = {name: array[0].tolist() for name, array in lookup(one_row(), SIZES).items()}
    assert after == {
        "cache_branches": 0,
        "round": 8,
        "active": True,
        "length": 22,
        "verify_tokens": [9, 13, 14],
        "verify_positions": [21, 22, 23],
        "verify_write_at": 21,
        "num_draft": 2,
        "root_tokens": [14],
        "root_positions": [23],
        "root_write_at": 29,
        "winner": 1,
        "commit_at": 27,
        "num_emitted": 2,
        "emitted": [6, 9, 0],
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_round": 6},
        {"cache_generation": 3},
        {"cache_branches": 1},
        {"bonus": 10},
        {"accepted": 0, "bonus": 10},
    ],
    ids=["of an older round", "for another text", "padding", "other token", "other count"],
)
def test_a_miss_proposes_nothing(changes: dict[str, Any], compiled) -> None:
    """A stale branch must never be taken: its tokens belong to another text."""
    arrays = one_row(**changes)
    after = lookup(arrays, SIZES)
    assert after["winner"][0] == -1
    assert after["num_draft"][0] == 0
    assert after["root_tokens"][0, 0] == after["verify_tokens"][0, 0] == arrays["bonus"][0]
    case = kernel.Case(kernel.values(arrays, 1, SIZES), after)
    assert errors_of(compiled, kernel.ENTRY, case, (8, 1, 1)) == []


def test_a_text_at_its_end_emits_and_becomes_a_dummy() -> None:
    after = lookup(one_row(length=98), SIZES)
    assert not after["active"][0]
    assert after["emitted"][0].tolist() == [6, 9, 0]
    assert after["length"][0] == 1
    assert after["verify_write_at"][0] == 0
    assert after["root_write_at"][0] == SIZES.draft_scratch


def test_impossible_outcomes_and_other_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="at most"):
        lookup(one_row(accepted=3), SIZES)
    with pytest.raises(UsageError, match="bonus must be int64"):
        lookup({**one_row(), "bonus": np.zeros(1, np.int32)}, SIZES)
    with pytest.raises(UsageError, match=r"cache_bonus must be int64 \[1, 3\]"):
        lookup({**one_row(), "cache_bonus": np.zeros((1, 2), np.int64)}, SIZES)


def test_the_bytes_are_those_of_the_arrays() -> None:
    """One branch's tokens are read, not all; counted by hand for W = 2, K = 1."""
    sizes = Sizes(2, 1, 8, 8, 0, 2)
    outcome, cache = 2 * 8, 4 + 4 + 8 + 8 + 2 * 4 + 2 * 8 + 8
    rows = 8 + 8 + 1 + 8
    calls = 2 * 8 + 2 * 8 + 8 + 8 + 8 + 8 + 8
    commit, emitted = 4 + 8, 4 + 2 * 8
    twice = 4 + 8 + 1 + 8 + 2 * 8  # cache_branches, round, active, length, verify_tokens
    one = outcome + cache + rows + calls + commit + emitted + twice
    assert kernel.num_bytes(1, sizes) == one
    assert kernel.num_bytes(3, sizes) == 3 * one
