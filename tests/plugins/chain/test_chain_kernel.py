"""Drafting one after the other: the kernel means what the reference does, and that is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.chain import kernel
from plugins.chain.reference import Sizes, follow, root
from plugins.cuda.kernel import Case
from plugins.lookup.reference import Kind
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of

CASES = {kernel.ROOT_ENTRY: kernel.root_case, kernel.NEXT_ENTRY: kernel.next_case}
ENTRIES = pytest.mark.parametrize("entry", CASES)
SIZES = Sizes(num_draft=3, draft_vocab=50, draft_scratch=6)


def random_sizes(rng: np.random.Generator) -> Sizes:
    return Sizes(int(rng.integers(1, 9)), int(rng.integers(1, 12)), int(rng.integers(0, 9)))


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


@ENTRIES
def test_the_kernel_is_the_reference_in_1000_cases(compiled, entry: str) -> None:
    """Also for rows that outnumber the threads of all blocks."""
    for index in range(NUM_CASES):
        rng = generator(index)
        case = CASES[entry](rng, int(rng.integers(1, 40)), random_sizes(rng))
        assert errors_of(compiled, entry, case, grid_of(index)) == [], f"case {index}"


@ENTRIES
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 6))
def test_the_grid_does_not_matter(
    compiled, entry: str, seed: int, num_threads: int, num_blocks: int
) -> None:
    rng = np.random.default_rng(seed)
    case = CASES[entry](rng, int(rng.integers(1, 40)), random_sizes(rng))
    assert errors_of(compiled, entry, case, (num_threads, num_blocks, 2)) == []


def one_row(**changes: Any) -> dict[str, np.ndarray]:
    """A text of 20 tokens that ends in 8, 9, with an old proposal, but for ``changes``."""
    arrays = {
        "active": True,
        "length": 20,
        "limit": 99,
        "last_tokens": [8, 9],
        "verify_tokens": [9, 1, 2, 3],
        "kind": Kind.HIT,
        "num_draft": 3,
        "sample": 17,
        **changes,
    }
    return {name: np.array([value]) for name, value in arrays.items()}


def test_the_root_feeds_the_last_two_tokens_and_drops_the_old_proposal() -> None:
    after = {name: each[0].tolist() for name, each in root(one_row(), SIZES, 3).items()}
    assert after == {
        "kind": Kind.JIT,
        "num_draft": 3,
        "verify_tokens": [9, 0, 0, 0],
        "root_tokens": [8, 9],
        "root_positions": [18, 19],
        "root_write_at": 24,
        "root_logit_rows": [1],
        "sample_positions": [19],
    }


def test_a_text_of_one_token_has_none_to_feed_again() -> None:
    after = root(one_row(length=1), SIZES, 3)
    assert after["root_tokens"][0].tolist() == [9, 0]
    assert after["root_positions"][0].tolist() == [0, 1]
    assert after["root_write_at"][0] == 6
    assert after["root_logit_rows"][0, 0] == after["sample_positions"][0, 0] == 0


def test_a_dummy_overwrites_nothing_of_a_prompt_that_is_being_fed() -> None:
    """19 positions are in the cache already."""
    after = root(one_row(active=False), SIZES, 3)
    assert after["root_positions"][0].tolist() == [19, 20]
    assert after["root_tokens"][0].tolist() == [0, 0]
    assert after["kind"][0] == after["num_draft"][0] == 0


@pytest.mark.parametrize(
    ("limit", "num_wanted", "expected"),
    [(99, 2, 2), (23, 3, 2), (21, 3, 0), (20, 3, 0), (99, 0, 0)],
)
def test_no_more_is_drafted_than_can_count(limit: int, num_wanted: int, expected: int) -> None:
    after = root(one_row(limit=limit), SIZES, num_wanted)
    assert after["num_draft"][0] == expected
    assert after["kind"][0] == (Kind.JIT if expected else Kind.NONE)


def test_ids_without_an_embedding_are_fed_as_0() -> None:
    """A padded target may choose one; what is verified keeps the id."""
    assert root(one_row(last_tokens=[50, 49]), SIZES, 3)["root_tokens"][0].tolist() == [0, 49]
    after = follow(one_row(sample=50), SIZES, 0)
    assert after["step_tokens"][0, 0] == 0
    assert after["verify_tokens"][0].tolist() == [9, 50, 2, 3]


def test_a_draft_is_proposed_and_fed_behind_the_text() -> None:
    after = {name: each[0].tolist() for name, each in follow(one_row(), SIZES, 1).items()}
    assert after == {
        "verify_tokens": [9, 1, 17, 3],
        "step_tokens": [17],
        "step_positions": [21],
        "step_write_at": 27,
        "step_logit_rows": [0],
    }
    assert follow(one_row(num_draft=1), SIZES, 1)["verify_tokens"][0, 2] == 0


def test_behind_the_last_draft_nothing_is_fed(compiled) -> None:
    arrays = one_row()
    expected = follow(arrays, SIZES, 2)["verify_tokens"]
    case = Case(kernel.values(arrays, 1, SIZES, index=2), {"verify_tokens": expected})
    assert errors_of(compiled, kernel.NEXT_ENTRY, case, (2, 1, 1)) == []


def test_the_bytes_are_those_of_the_arrays() -> None:
    """By hand for a row and K = 3."""
    read = 1 + 8 + 8 + 2 * 8
    written = 8 + 8 + 3 * 8 + (2 + 2 + 1 + 1 + 1) * 8
    assert kernel.num_bytes(kernel.ROOT_ENTRY, 1, SIZES) == read + written
    assert kernel.num_bytes(kernel.NEXT_ENTRY, 2, SIZES) == 2 * 8 * (3 + 1 + 4)
