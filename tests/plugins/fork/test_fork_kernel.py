"""Forks, their steps and what is kept of a winner: the kernel has the reference's meaning, and
that is the draft worker's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.fork import kernel
from plugins.fork.reference import Sizes, fork, keep, step
from plugins.lookup import reference as lookups
from plugins.lookup.reference import RANK, WAS_PREPARED, lookup
from runtime.spec.fallback import ProposalKind
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.ahead import Ahead
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of

CASES = {
    kernel.FORK: kernel.fork_case,
    kernel.STEP: kernel.step_case,
    kernel.KEEP: kernel.keep_case,
}
ENTRIES = pytest.mark.parametrize("entry", CASES)


def random_sizes(rng: np.random.Generator) -> Sizes:
    branches = int(rng.integers(1, 40))
    return Sizes(
        num_branches=branches,
        num_draft=int(rng.integers(0, 9)),
        num_ranks=int(rng.integers(1, 12)),
        draft_vocab=int(rng.integers(1, 12)),
        stride=branches + int(rng.integers(0, 5)),
    )


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


@ENTRIES
def test_the_kernel_is_the_reference_in_1000_cases(compiled, entry: str) -> None:
    """Also for threads that outnumber the branches, and blocks that take several rows."""
    for index in range(NUM_CASES):
        rng = generator(index)
        case = CASES[entry](rng, int(rng.integers(1, 9)), random_sizes(rng))
        assert errors_of(compiled, entry, case, grid_of(index)) == [], f"case {index}"


@ENTRIES
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 6))
def test_the_grid_does_not_matter(
    compiled, entry: str, seed: int, num_threads: int, num_blocks: int
) -> None:
    rng = np.random.default_rng(seed)
    case = CASES[entry](rng, int(rng.integers(1, 6)), random_sizes(rng))
    assert errors_of(compiled, entry, case, (num_threads, num_blocks, 2)) == []


SIZES = Sizes(num_branches=5, num_draft=2, num_ranks=3, draft_vocab=50, stride=8)


def one_row(**changes: Any) -> dict[str, np.ndarray]:
    """A row that verifies two tokens, of which the second's candidates were kept, but for
    ``changes``."""
    arrays: dict[str, Any] = {
        "active": [True],
        "length": [20],
        "limit": [99],
        "generation": [4],
        "round": [7],
        "num_draft": [2],
        "fan_out": np.int32([[3, 0, 0], [2, 1, 0], [1, 2, 1]]),
        "root_list": [[41, 42, 43, 44]],
        "candidates": [[[11, 12, 13], [21, 22, 23], [0, 0, 0]]],
        **{name: np.zeros(1, np.int32) for name in ("cache_branches", "cache_depth")},
        **{name: [0] for name in ("cache_generation", "cache_round")},
        **{name: np.zeros((1, 5), np.int64) for name in ("fork_tokens", "lengths", "cache_bonus")},
        "cache_accepted": np.zeros((1, 5), np.int32),
    }
    return {name: np.asarray(value) for name, value in (arrays | changes).items()}


def test_branches_stand_in_the_order_of_their_outcomes() -> None:
    """By hand: one candidate after no token, two after one, one after both, and padding."""
    after = {name: array[0].tolist() for name, array in fork(one_row(), SIZES, 2).items()}
    assert after == {
        "candidates": [[11, 12, 13], [21, 22, 23], [41, 42, 43]],
        "fork_tokens": [11, 21, 22, 41, 0],
        "lengths": [20, 21, 21, 22, 0],
        "cache_branches": 4,
        "cache_depth": 2,
        "cache_generation": 4,
        "cache_round": 7,
        "cache_accepted": [0, 1, 1, 2, 0],
        "cache_bonus": [11, 21, 22, 41, -1],
    }


@pytest.mark.parametrize(
    ("changes", "num_branches", "tokens"),
    [
        ({"num_draft": np.array([0])}, 3, [41, 42, 43, 0, 0]),
        ({"fan_out": np.full((3, 3), 9, np.int32)}, 5, [11, 12, 13, 21, 22]),
        ({"active": np.array([False])}, 0, [0] * 5),
        ({"limit": np.array([21])}, 0, [0] * 5),
        ({"limit": np.array([22])}, 4, [11, 21, 22, 41, 0]),
        ({"root_list": np.array([[-1, -1, -1, -1]])}, 4, [11, 21, 22, 0, 0]),
    ],
    ids=["nothing drafted", "too many", "a dummy", "ends now", "may go on", "damaged logits"],
)
def test_what_is_prepared_for(changes, num_branches: int, tokens: list[int]) -> None:
    after = fork(one_row(**changes), SIZES, 2)
    assert after["cache_branches"][0] == num_branches
    assert after["fork_tokens"][0].tolist() == tokens
    is_padding = after["cache_bonus"][0] < 0
    assert (after["lengths"][0] == 0).tolist() == is_padding.tolist()


@given(st.integers(0, 2**32), st.integers(0, 4))
def test_the_outcomes_are_those_of_the_draft_worker(seed: int, num_drafted: int) -> None:
    """A device's fan-out is a row of the host's plans, and leads to the host's branches."""
    rng = np.random.default_rng(seed)
    sizes = Sizes(int(rng.integers(1, 20)), 4, int(rng.integers(1, 9)), 100, 20)
    statistics = OutcomeStatistics(sizes.num_draft, sizes.num_ranks)
    kinds = [ProposalKind.NONE, *[ProposalKind.HIT] * sizes.num_draft]
    fan_out = np.zeros((5, 5), np.int32)
    for drafted, kind in enumerate(kinds):
        counts = statistics.plan(kind, drafted, sizes.num_branches).counts
        fan_out[drafted, : drafted + 1] = counts
    candidates = rng.permutation(500)[: 5 * sizes.num_ranks].reshape(1, 5, -1)
    root = np.append(candidates[0, num_drafted], 0)[None]
    row = one_row(
        fan_out=fan_out,
        candidates=candidates,
        root_list=root,
        num_draft=np.array([num_drafted]),
        **{n: np.zeros((1, sizes.num_branches), int) for n in ("fork_tokens", "lengths")},
        cache_bonus=np.zeros((1, sizes.num_branches), int),
        cache_accepted=np.zeros((1, sizes.num_branches), np.int32),
    )
    after = fork(row, sizes, 4)
    count = int(after["cache_branches"][0])

    def bonus_candidates(logits, *_args, **_fields):
        return logits

    worker = object.__new__(Ahead)
    worker._statistics = statistics
    worker._calls = SimpleNamespace(
        rule=SimpleNamespace(bonus_candidates=bonus_candidates),
        session=SimpleNamespace(vocab_map=None),
    )
    held = SimpleNamespace(
        state=None,
        proposal=[0] * num_drafted,
        tokens=[0] * 20,
        source=kinds[num_drafted],
        logits=candidates[0],
        entry=SimpleNamespace(params=None),
    )
    expected = worker._fork(held, sizes.num_branches)
    found = zip(after["cache_accepted"][0, :count], after["cache_bonus"][0, :count], strict=True)
    assert list(found) == expected


def test_a_step_feeds_what_was_chosen_behind_the_branch() -> None:
    """Padding too, at position d and in its own scratch row; unknown ids are 0."""
    lengths, chosen = np.array([[20, 21, 0]]), np.array([[49, 50, -1]])
    after = step(lengths, chosen, SIZES, 2)
    assert {name: each[0].tolist() for name, each in after.items()} == {
        "step_tokens": [49, 0, 0],
        "step_positions": [22, 23, 2],
        "step_write_at": 16,
        "step_logit_rows": [0, 1, 2],
    }


def test_a_winner_leaves_the_candidates_but_for_what_it_drafted() -> None:
    """By hand: of a branch that drafted 30, then 31, of which one token is proposed."""
    lists = np.arange(2 * 1 * 5 * 4).reshape(2, 1, 5, 4)
    lists[0, 0, 3] = [30, 1, 2, 3]
    lists[1, 0, 3] = [31, 4, 5, 6]
    arrays = {
        "candidates": np.full((1, 3, 3), 9),
        "branch_lists": lists,
        "winner": np.int32([3]),
        "num_draft": np.array([1]),
    }
    assert keep(arrays)[0].tolist() == [[1, 2, 3], [9, 9, 9], [9, 9, 9]]
    arrays["num_draft"][0] = 2
    assert keep(arrays)[0].tolist() == [[1, 2, 3], [4, 5, 6], [9, 9, 9]]
    arrays["winner"][0] = -1
    assert (keep(arrays) == 9).all()


@given(st.integers(0, 2**32))
def test_the_lookup_finds_every_outcome_that_a_fork_prepared(seed: int) -> None:
    """And its rank, among the same candidates."""
    rng = np.random.default_rng(seed)
    sizes = random_sizes(rng)
    case = kernel.fork_case(rng, 1, sizes)
    after = case.expected
    row, *_ = after["cache_bonus"]
    found = lookups.Sizes(sizes.num_branches, sizes.num_draft, 50, 0, 0, sizes.num_ranks)
    tokens = np.arange(sizes.num_draft * row.size).reshape(sizes.num_draft, 1, row.size)
    for branch in range(int(after["cache_branches"][0])):
        accepted, bonus = int(after["cache_accepted"][0, branch]), int(row[branch])
        if bonus < 0:
            continue
        arrays = {
            name: np.zeros(shape, dtype)
            for name, (dtype, shape) in lookups.shapes(1, found).items()
        }
        arrays |= {name: after[name] for name in arrays if name in after}
        arrays |= {"cache_tokens": tokens, "generation": case.values["generation"]}
        arrays |= {"round": case.values["round"], "num_draft": case.values["num_draft"]}
        arrays |= {"accepted": np.array([accepted]), "bonus": np.array([bonus])}
        arrays |= {"active": np.array([True]), "length": np.array([9]), "limit": np.array([999])}
        message = lookup(arrays, found)["outcome"][0]
        assert message[WAS_PREPARED] == 1
        assert message[RANK] >= 0


def test_the_bytes_are_those_of_the_arrays() -> None:
    """By hand for one row, W = 2, K = 1, F = 3."""
    sizes = Sizes(2, 1, 3, 50, 2)
    state, plan, lists = 1 + 5 * 8, 2 * 4, 3 * 8 + 2 * 8
    written = 3 * 8 + 2 * (8 + 8 + 4 + 8) + 4 + 4 + 8 + 8
    assert kernel.num_bytes(kernel.FORK, 1, sizes) == state + plan + lists + written
    assert kernel.num_bytes(kernel.STEP, 1, sizes) == 2 * 2 * 8 + 3 * 2 * 8 + 8
    assert kernel.num_bytes(kernel.KEEP, 1, sizes) == 2 * 3 * 8 + 4 + 8
