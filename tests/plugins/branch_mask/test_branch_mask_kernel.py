"""The masks: their meaning is the layout's, and the kernel has that meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.manifest import KvLayout
from engines.tensors import DType
from plugins.branch_mask import kernel
from plugins.cuda.kernel import Case
from runtime.kv import layout
from runtime.kv.layout import SlotLayout
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of


def random_trunk_case(rng: np.random.Generator) -> Case:
    num_tokens, scratch = int(rng.integers(1, 18)), int(rng.integers(0, 40))
    return kernel.trunk_case(
        rng,
        num_rows=int(rng.integers(1, 5)),
        num_tokens=num_tokens,
        num_attended=scratch + num_tokens + int(rng.integers(0, 70)),
        scratch_rows=scratch,
    )


def random_branch_case(rng: np.random.Generator) -> Case:
    branches, drafts = int(rng.integers(1, 20)), int(rng.integers(1, 17))
    return kernel.branch_case(
        rng,
        num_rows=int(rng.integers(1, 4)),
        num_tokens=int(rng.integers(1, branches + 1)),
        num_attended=branches * drafts + int(rng.integers(0, 70)),
        scratch_rows=branches * drafts,
        num_branches=branches,
        depth=int(rng.integers(0, drafts)),
    )


ENTRIES = {kernel.TRUNK: random_trunk_case, kernel.BRANCH: random_branch_case}


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_kernel_is_the_reference_in_1000_cases(compiled, entry: str) -> None:
    """Also for lengths that are no multiple of 16, where a token's mask starts at any address."""
    for index in range(NUM_CASES):
        case = ENTRIES[entry](generator(index))
        assert errors_of(compiled, entry, case, grid_of(index)) == [], f"case {index}"


@pytest.mark.parametrize("entry", ENTRIES)
@given(seed=st.integers(0, 2**32), num_threads=st.integers(1, 5), num_blocks=st.integers(1, 6))
def test_the_grid_does_not_matter(compiled, entry, seed, num_threads, num_blocks) -> None:
    case = ENTRIES[entry](np.random.default_rng(seed))
    assert errors_of(compiled, entry, case, (num_threads, num_blocks, 2)) == []


def slot_layout(scratch_rows: int, num_branches: int) -> SlotLayout:
    return SlotLayout(KvLayout(1, 1, 1, DType.FLOAT32, scratch_rows, 99), num_branches)


@given(st.integers(0, 2**32))
def test_the_trunk_reference_is_the_layouts(seed: int) -> None:
    case = random_trunk_case(np.random.default_rng(seed))
    values, mask = case.values, case.expected["mask"]
    slot = slot_layout(values["scratch_rows"], 0)
    expected = np.zeros_like(mask[:, 0])
    layout.trunk_mask(expected, slot, values["positions"] - values["scratch_rows"])
    assert (mask[:, 0] == expected).all()


@given(st.integers(0, 2**32))
def test_the_branch_reference_is_the_layouts(seed: int) -> None:
    """Also for branches of length 0, which are padding."""
    case = random_branch_case(np.random.default_rng(seed))
    values, mask = case.values, case.expected["mask"]
    slot = slot_layout(values["scratch_rows"], values["num_branches"])
    expected = np.zeros_like(mask[:, 0])
    layout.branch_mask(expected, slot, values["positions"], values["depth"])
    assert (mask[:, 0] == expected).all()


def test_no_token_is_without_anything_to_attend() -> None:
    """An engine gives such a row zeros, or anything."""
    for index in range(50):
        for make in ENTRIES.values():
            assert make(generator(index)).expected["mask"].any(-1).all()


def test_the_bytes_are_the_masks() -> None:
    for trial in kernel.KERNEL.trials:
        case = trial.make(np.random.default_rng(0))
        assert trial.num_bytes == case.expected["mask"].nbytes
