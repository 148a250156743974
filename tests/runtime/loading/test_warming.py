"""Which calls are run once before the first text."""

from __future__ import annotations

import pytest

from engines.manifest import DRAFT, TARGET
from runtime.loading.warming import round_calls

PROMPT = {(1, 16, 1, 0), (1, 32, 1, 0), (1, 48, 1, 0), (1, 64, 1, 0)}


def calls(role: str, mode: str, num_slots: int = 3, min_tokens: int = 1) -> set[tuple[int, ...]]:
    """B, T, R and copy of each."""
    found = round_calls(
        role, mode, num_draft=2, num_branches=6, num_slots=num_slots, min_tokens=min_tokens
    )
    assert len(set(found)) == len(found)
    return {(call.num_slots, call.num_tokens, call.num_logits, call.copy) for call in found}


@pytest.mark.parametrize(
    ("role", "mode", "expected"),
    [
        (TARGET, "ar", {(1, 1, 1, 0), (3, 1, 1, 0)}),
        (TARGET, "ssd", {(1, 1, 1, 0), (3, 1, 1, 0), (1, 3, 3, 0), (3, 3, 3, 0)}),
        (DRAFT, "sd", {(1, 1, 1, 0), (1, 2, 1, 0), (3, 1, 1, 0), (3, 2, 1, 0)}),
        (
            DRAFT,
            "ssd",
            {
                *((1, 1, 1, 0), (1, 6, 6, 1), (1, 6, 6, 2)),
                *((3, 1, 1, 0), (3, 6, 6, 1), (3, 6, 6, 2)),
            },
        ),
    ],
)
def test_the_calls_of_rounds_and_prompts_are_run(
    role: str, mode: str, expected: set[tuple[int, ...]]
) -> None:
    assert calls(role, mode) == PROMPT | expected


def test_a_padded_target_is_run_at_the_width_that_it_is_called_with() -> None:
    """A narrower call would compile kernels that nobody uses."""
    assert calls(TARGET, "ssd", num_slots=1, min_tokens=3) == PROMPT | {(1, 3, 3, 0)}
