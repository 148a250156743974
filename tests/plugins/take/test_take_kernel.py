"""Taking a proposal: the kernel has the reference's meaning, and that is right by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugins.take import kernel
from plugins.take.reference import take
from tests.helpers.grids import NUM_CASES, errors_of, generator, grid_of


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, kernel.ARGS)


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_kernel_is_the_reference_in_1000_cases(compiled, is_packed: bool) -> None:
    """Also for calls that are narrower than the proposal."""
    for index in range(NUM_CASES):
        rng = generator(index)
        drafts = int(rng.integers(0, 6))
        case = kernel.random_case(
            rng,
            int(rng.integers(1, 7)),
            drafts,
            int(rng.integers(1, drafts + 2)),
            is_packed=is_packed,
        )
        assert errors_of(compiled, kernel.ENTRY, case, grid_of(index)) == [], f"case {index}"


def one_row(**changes: Any) -> dict[str, np.ndarray]:
    """A running text of 20 tokens that takes both drafts, but for ``changes``."""
    values = {
        "sent_generation": 4,
        "sent_kind": 1,
        "sent_num_draft": 2,
        "sent_tokens": [6, 7],
        "generation": 4,
        "active": True,
        "limit": 100,
        "length": 20,
        "verify_tokens": [5, 8, 9],
        "num_draft": 1,
        "kind": 2,
        **changes,
    }
    return {name: np.array([value]) for name, value in values.items()}


def taken(**changes: Any) -> dict[str, Any]:
    after = take(one_row(**changes), num_tokens=3, scratch_rows=10)
    return {name: array[0].tolist() for name, array in after.items()}


def test_a_proposal_becomes_the_call() -> None:
    assert taken() == {
        "verify_tokens": [5, 6, 7],
        "num_draft": 2,
        "kind": 1,
        "tokens": [5, 6, 7],
        "positions": [19, 20, 21],
        "write_at": 29,
        "call_num_draft": 2,
        "logit_rows": [0, 1, 2],
    }


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"sent_generation": 3}, 0),
        ({"active": False}, 0),
        ({"limit": 21}, 1),
        ({"sent_num_draft": 0}, 1),
    ],
    ids=["for the slot's last holder", "a dummy", "no room", "no tokens"],
)
def test_nothing_is_taken(changes: dict[str, Any], kind: int) -> None:
    """A draft for another text, or one that cannot count, must not be verified; but that an outcome
    had been prepared is told even where there is no room for its tokens."""
    after = taken(**changes)
    assert after["tokens"] == after["verify_tokens"] == [5, 0, 0]
    assert after["num_draft"] == after["call_num_draft"] == 0
    assert after["kind"] == kind


def test_drafts_are_cut_to_the_call_and_to_the_room() -> None:
    assert taken(limit=22)["verify_tokens"] == [5, 6, 0]
    after = take(one_row(), num_tokens=2, scratch_rows=0)
    assert after["tokens"].tolist() == [[5, 6]]
    assert after["num_draft"].tolist() == [1]


def test_without_a_message_every_row_is_plain(compiled) -> None:
    """Plain decoding has no draft that could have sent one."""
    arrays = {name: each for name, each in one_row().items() if not name.startswith("sent_")}
    after = take(arrays, 1, 0)
    assert after["num_draft"].tolist() == [0]
    fields = kernel.ARGS.blank() | {name: np.zeros_like(each) for name, each in after.items()}
    fields |= arrays | {"num_rows": 1, "num_tokens": 1, "max_draft": 2}
    case = kernel.Case(fields, after)
    assert errors_of(compiled, kernel.ENTRY, case, (4, 1, 1)) == []
