"""The lookup: the kernel has the reference's meaning, and that is right by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from plugins.lookup import kernel, reference
from plugins.lookup.reference import Kind, Sizes, lookup
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of
from tests.helpers.lookups import Arrays, random_sizes


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


SIZES = Sizes(3, 2, 50, 0, 6, num_ranks=2)


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
        "cache_tokens": [[[11, 13, 15]], [[12, 14, 16]]],
        "candidates": [[3, 4], [8, 9], [-1, -1]],
        "generation": 4,
        "limit": 100,
        "round": 7,
        "active": True,
        "length": 20,
        "kind": Kind.HIT,
        "verify_tokens": [5, 6, 8],
        "num_draft": 2,
        **changes,
    }
    return {
        name: np.asarray(values.get(name, np.zeros(shape)), dtype).reshape(shape)
        for name, (dtype, shape) in reference.shapes(1, SIZES).items()
    }


def test_a_hit_becomes_the_next_calls() -> None:
    after = {name: array[0].tolist() for name, array in lookup(one_row(), SIZES).items()}
    assert after == {
        "cache_branches": 0,
        "round": 8,
        "active": True,
        "length": 22,
        "kind": Kind.HIT,
        "last_tokens": [6, 9],
        "verify_tokens": [9, 13, 14],
        "verify_positions": [21, 22, 23],
        "verify_write_at": 21,
        "num_draft": 2,
        "root_tokens": [14],
        "root_positions": [23],
        "root_write_at": 29,
        "winner": 1,
        "commit_at": 27,
        "outcome": [4, Kind.HIT, 2, 1, 6, 9, 0, 1, 1, 0],
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
    accepted, bonus = int(arrays["accepted"][0]), int(arrays["bonus"][0])
    after = lookup(arrays, SIZES)
    assert after["winner"][0] == -1
    assert after["num_draft"][0] == after["kind"][0] == 0
    assert after["root_tokens"][0, 0] == after["verify_tokens"][0, 0] == arrays["bonus"][0]
    assert after["last_tokens"][0].tolist() == [arrays["verify_tokens"][0, accepted], bonus]
    case = kernel.Case(kernel.values(arrays, 1, SIZES), after)
    assert errors_of(compiled, kernel.ENTRY, case, (8, 1, 1)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1, 1)),
        ({"accepted": 0, "bonus": 3}, (0, 0)),
        ({"accepted": 2, "bonus": 9}, (1, -1)),
        ({"cache_branches": 0}, (-1, 1)),
        ({"cache_round": 6}, (-1, 1)),
        ({"limit": 22}, (1, 1)),
    ],
    ids=["hit", "miss", "no candidate", "nothing prepared", "stale", "at its limit"],
)
def test_the_host_learns_what_its_statistics_count(changes, expected) -> None:
    """Rank and hit count also where the text ends with them, as the draft worker counts."""
    message = lookup(one_row(**changes), SIZES)["outcome"][0]
    assert (message[reference.WAS_PREPARED], message[reference.RANK]) == expected


def test_a_broken_verification_is_reported_with_its_row() -> None:
    """But not of a dummy, whose logits nobody reads."""
    assert lookup(one_row(status=1), SIZES)["outcome"][0, reference.STATUS] == 1
    assert lookup(one_row(status=1, active=False), SIZES)["outcome"][0, reference.STATUS] == 0


def test_without_a_cache_a_text_goes_on_by_itself(compiled) -> None:
    """Plain decoding on the target's device: what is the draft's is not there to be written."""
    sizes = Sizes(1, 3, 50, 0, 0)
    drafts = "cache_", "root_", "winner", "commit_at", "candidates", "last_tokens", "status"
    for index in range(50):
        rng = generator(index)
        arrays = kernel.random_arrays(rng, 3, sizes)
        arrays["cache_branches"][:] = arrays["status"][:] = 0
        arrays["candidates"] = arrays["candidates"][..., :0]
        expected = {n: a for n, a in lookup(arrays, sizes).items() if not n.startswith(drafts)}
        given = {n: None if n.startswith(drafts) else a for n, a in arrays.items()}
        case = kernel.Case(kernel.values(given, 3, sizes), expected)
        assert errors_of(compiled, kernel.ENTRY, case, grid_of(index)) == []


def test_a_text_at_its_limit_emits_and_becomes_a_dummy() -> None:
    after = lookup(one_row(limit=22), SIZES)
    assert not after["active"][0]
    assert after["outcome"][0].tolist() == [4, Kind.HIT, 2, 1, 6, 9, 0, 1, 1, 0]
    assert after["kind"][0] == after["num_draft"][0] == 0
    assert after["winner"][0] == -1
    assert after["length"][0] == 1
    assert after["verify_write_at"][0] == 0
    assert after["root_write_at"][0] == SIZES.draft_scratch


@pytest.mark.parametrize(("limit", "num_draft"), [(25, 2), (24, 1), (23, 0)])
def test_drafts_are_cut_to_the_room_that_is_left(limit: int, num_draft: int, compiled) -> None:
    """By hand: of a text of 22 tokens. Drafts that cannot count would be written behind it."""
    arrays = one_row(limit=limit)
    after = lookup(arrays, SIZES)
    assert after["active"][0]
    assert after["kind"][0] == Kind.HIT
    assert after["num_draft"][0] == num_draft
    assert after["winner"][0] == (1 if num_draft else -1)
    assert after["verify_tokens"][0].tolist() == [9, *[13, 14][:num_draft], *[0] * (2 - num_draft)]
    case = kernel.Case(kernel.values(arrays, 1, SIZES), after)
    assert errors_of(compiled, kernel.ENTRY, case, (8, 1, 1)) == []


def test_a_dummy_overwrites_nothing_of_a_prompt_that_is_being_fed() -> None:
    """It feeds its token behind the 19 positions that are in the cache already."""
    after = lookup(one_row(active=False), SIZES)
    assert after["length"][0] == 20
    assert after["verify_positions"][0].tolist() == [19, 20, 21]
    assert after["root_positions"][0].tolist() == [19]
    assert after["root_write_at"][0] == SIZES.draft_scratch + 19
    assert after["verify_tokens"][0].tolist() == [0, 0, 0]
    assert after["outcome"][0].tolist() == [4, Kind.SKIP, 0, 0, 0, 0, 0, -1, -1, 0]
    assert after["cache_branches"][0] == 3


def test_impossible_outcomes_and_other_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="at most"):
        lookup(one_row(accepted=3), SIZES)
    with pytest.raises(UsageError, match="bonus must be int64"):
        lookup({**one_row(), "bonus": np.zeros(1, np.int32)}, SIZES)
    with pytest.raises(UsageError, match=r"cache_tokens must be int64 \[2, 1, 3\]"):
        lookup({**one_row(), "cache_tokens": np.zeros((3, 1, 2), np.int64)}, SIZES)
    with pytest.raises(UsageError, match=r"cache_bonus must be int64 \[1, 3\]"):
        lookup({**one_row(), "cache_bonus": np.zeros((1, 2), np.int64)}, SIZES)


def test_the_bytes_are_those_of_the_arrays() -> None:
    """One branch's tokens are read, not all; counted by hand for W = 2, K = 1, F = 3."""
    sizes = Sizes(2, 1, 8, 0, 2, num_ranks=3)
    outcome, cache = 2 * 8 + 4 + 3 * 8, 4 + 4 + 8 + 8 + 2 * 4 + 2 * 8 + 8
    rows = 8 + 8 + 8 + 1 + 8 + 8
    calls = 2 * 8 + 2 * 8 + 8 + 8 + 8 + 8 + 8
    commit, message = 4 + 8, 2 * 8 + 4 * 8 + 2 * 8 + 3 * 8
    # cache_branches; round, active, length, kind; verify_tokens, num_draft
    twice = 4 + (8 + 1 + 8 + 8) + (2 * 8 + 8)
    one = outcome + cache + rows + calls + commit + message + twice
    assert kernel.num_bytes(1, sizes) == one
    assert kernel.num_bytes(3, sizes) == 3 * one
