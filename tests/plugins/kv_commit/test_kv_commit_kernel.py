"""The commit: its meaning is the session's row copy, and the kernel has that meaning."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from engines.manifest import KvLayout
from engines.tensors import DType
from plugins.cuda.args import addresses
from plugins.cuda.kernel import Case
from plugins.kv_commit import kernel
from plugins.kv_commit.reference import kv_commit
from runtime.kv.layout import SlotLayout
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of

DTYPES = ("uint8", "uint16", "uint32")


def random_case(rng: np.random.Generator) -> Case:
    branches, drafts = int(rng.integers(1, 9)), int(rng.integers(0, 7))
    num_rows = drafts * (branches + 1) + int(rng.integers(1, 20))
    shape = (int(rng.integers(1, 5)), int(rng.integers(1, 4)), num_rows, int(rng.integers(1, 40)))
    return kernel.random_case(
        rng,
        num_caches=int(rng.integers(1, 5)),
        shape=shape,
        dtype=str(rng.choice(DTYPES)),
        num_branches=branches,
        num_draft=drafts,
        hit_rate=float(rng.choice([0.0, 0.7, 1.0])),
    )


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


def test_the_kernel_is_the_reference_in_1000_cases(compiled) -> None:
    """Rows of every width, so with units of 16, 4, 2 and 1 bytes."""
    for index in range(NUM_CASES):
        case = random_case(generator(index))
        assert errors_of(compiled, kernel.ENTRY, case, grid_of(index)) == [], f"case {index}"


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 6))
def test_the_grid_does_not_matter(compiled, seed: int, num_threads: int, num_blocks: int) -> None:
    case = random_case(np.random.default_rng(seed))
    assert errors_of(compiled, kernel.ENTRY, case, (num_threads, num_blocks, 2)) == []


@pytest.mark.parametrize("offset", [1, 2, 4, 8, 16])
def test_a_cache_may_start_at_any_address(compiled, offset: int) -> None:
    """A slot's cache is a part of a larger one; 16-byte copies need a 16-byte address."""
    rng = generator(offset)
    shape = (1, 1, 10, 16)
    room = np.frombuffer(rng.bytes(16 * 12), np.uint8).copy()
    start = -room.ctypes.data % 16 + offset
    cache = room[start : start + 160].reshape(shape)
    arrays = np.int32([1]), np.int64([2]), np.int64([7])
    [expected] = kv_commit([cache], *arrays, num_branches=2)
    outside = room.copy()
    values = dict(zip(("winner", "num_draft", "commit_at"), arrays, strict=True))
    numbers = kernel.numbers(1, shape, 1, num_branches=2)
    compiled.launch(
        kernel.ENTRY,
        {**values, **numbers, "caches": addresses([cache])},
        num_blocks=1,
        num_threads=3,
    )
    assert (cache == expected).all()
    assert (room[:start] == outside[:start]).all()
    assert (room[start + 160 :] == outside[start + 160 :]).all()


@given(st.integers(0, 2**32))
def test_the_reference_moves_the_layouts_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    values, [first, *_] = case.values, case.tables["caches"]
    branches = values["num_branches"]
    depths, winner = values["num_draft"], values["winner"]
    expected = first.copy()
    for row in np.flatnonzero(winner >= 0):
        scratch = int(depths.max()) * branches
        layout = SlotLayout(KvLayout(1, 1, 1, DType.FLOAT32, scratch, 99), branches)
        depth = int(depths[row])
        to = int(values["commit_at"][row])
        rows = first[row][:, layout.branch_rows(int(winner[row]), depth)]
        expected[row, :, to : to + depth] = rows[:, :depth]
    assert (case.expected["caches.0"] == expected).all()


def test_rows_that_cannot_move_are_refused() -> None:
    cache = [np.zeros((1, 1, 10, 1), np.uint8)]
    one = np.int64([2])
    for winner, first in ((0, 9), (0, 3), (2, 7)):
        with pytest.raises(UsageError, match="cannot move"):
            kv_commit(cache, np.int32([winner]), one, np.int64([first]), num_branches=2)
    kv_commit(cache, np.int32([-1]), one, np.int64([0]), num_branches=2)


def test_the_bytes_are_the_rows_read_and_written() -> None:
    """By hand: 3 caches, 2 slots, 5 heads, 4 rows of 16 bytes, each read and written."""
    assert kernel.num_bytes(3, 2, 5, 4, 16) == 2 * (3 * 2 * 5 * 4) * 16
    trial = kernel.KERNEL.trials[0]
    case = trial.make(np.random.default_rng(0))
    before, after = case.tables["caches"], case.expected
    moved = sum(
        np.count_nonzero((cache != after[f"caches.{index}"]).any(-1))
        for index, cache in enumerate(before)
    )
    row_bytes = case.values["row_bytes"]
    assert trial.num_bytes == 2 * moved * row_bytes  # random rows differ from what they replace


def test_a_missing_row_keeps_every_byte(compiled) -> None:
    case = random_case(generator(5))
    nothing = np.full_like(case.values["winner"], -1)
    kept = {f"caches.{index}": cache for index, cache in enumerate(case.tables["caches"])}
    case = dataclasses.replace(case, values={**case.values, "winner": nothing}, expected=kept)
    assert errors_of(compiled, kernel.ENTRY, case, (8, 3, 1)) == []
