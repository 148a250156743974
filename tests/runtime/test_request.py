"""Where a text is cut: E1, E6 and E9 of the faults that users of other systems met.

E1 a block was kept whole although its third token was end-of-sequence; E6 the budget was looked
at before the stop; E9 a budget of one gave four tokens.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError, UsageError
from runtime.request import FinishReason, Request, read_request
from runtime.sampling.params import SamplingParams

STOP = 9


def make_request(*, max_tokens: int = 100, max_len: int = 1000, prompt_len: int = 3) -> Request:
    return Request([1] * prompt_len, SamplingParams(), max_tokens, frozenset({STOP}), max_len)


def test_a_stop_inside_a_block_ends_the_text_there() -> None:
    """E1."""
    request = make_request()
    assert request.commit([10, 11, STOP, 12, 13, 14]) == [10, 11]
    assert request.generated == [10, 11]
    assert request.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("max_tokens", "expected", "reason"),
    [
        (5, [10, 11], FinishReason.STOP),
        (3, [10, 11], FinishReason.STOP),
        (2, [10, 11], FinishReason.LENGTH),
        (1, [10], FinishReason.LENGTH),
    ],
)
def test_the_earlier_of_stop_and_budget_wins(max_tokens, expected, reason) -> None:
    """E6; the stop is the third token, so a budget of three still reaches it."""
    request = make_request(max_tokens=max_tokens)
    request.commit([10, 11, STOP, 20, 21, 22])
    assert (request.generated, request.finish_reason) == (expected, reason)


@pytest.mark.parametrize("max_tokens", range(1, 8))
@pytest.mark.parametrize("block", range(1, 6))
def test_a_budget_is_met_exactly(max_tokens: int, block: int) -> None:
    """E9, whatever the size of the blocks."""
    request = make_request(max_tokens=max_tokens)
    while request.finish_reason is None:
        request.commit([10] * block)
    assert request.generated == [10] * max_tokens
    assert request.finish_reason is FinishReason.LENGTH


def test_the_context_ends_the_text_when_prompt_and_text_fill_it() -> None:
    request = make_request(max_len=8, prompt_len=6)
    assert request.commit([10, 11, 12]) == [10, 11]
    assert request.finish_reason is FinishReason.CONTEXT


def test_a_budget_that_just_fits_the_context_ends_as_a_budget() -> None:
    request = make_request(max_len=8, prompt_len=6, max_tokens=2)
    request.commit([10, 11, 12])
    assert request.finish_reason is FinishReason.LENGTH


def test_a_stop_right_behind_the_context_is_not_reached() -> None:
    request = make_request(max_len=8, prompt_len=6)
    request.commit([10, 11, STOP])
    assert request.finish_reason is FinishReason.CONTEXT


@given(
    st.lists(st.integers(5, 12), min_size=1, max_size=30),
    st.lists(st.integers(1, 7), min_size=30, max_size=30),
    st.integers(1, 20),
    st.integers(4, 25),
)
def test_the_text_does_not_depend_on_how_it_came_in_blocks(tokens, sizes, max_tokens, max_len):
    """Modes differ in their blocks alone; what the caller gets must not."""
    one_by_one = make_request(max_tokens=max_tokens, max_len=max_len)
    in_blocks = make_request(max_tokens=max_tokens, max_len=max_len)
    given_out: list[int] = []
    for token in tokens:
        if one_by_one.finish_reason is None:
            one_by_one.commit([token])
    rest = list(tokens)
    for size in sizes:
        if rest and in_blocks.finish_reason is None:
            given_out += in_blocks.commit(rest[:size])
            rest = rest[size:]
    assert in_blocks.generated == one_by_one.generated == given_out
    assert in_blocks.finish_reason is one_by_one.finish_reason


@pytest.mark.parametrize("token", [-1, 10, 10**30])
def test_an_id_outside_the_vocabulary_is_refused_by_name(token: int) -> None:
    with pytest.raises(UsageError, match=f"token id {token}, the vocabulary ends at 9"):
        read_request([1, token], 5, max_len=8, vocab_size=10)


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert read_request([1] * 7, 5, max_len=8, vocab_size=10) == ([1] * 7, 5)
    with pytest.raises(CapacityError, match="8 tokens"):
        read_request([1] * 8, 5, max_len=8, vocab_size=10)
