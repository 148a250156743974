"""Where a text is cut: E1, E6, E7, E9 and E11 of the faults that users of other systems met.

E1 a block was kept whole although its third token was end-of-sequence; E6 the budget was looked
at before the stop; E7 ids and log-probabilities went on behind a stop string; E9 a budget of one
gave four tokens; E11 tokens behind the end counted as emitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError, UsageError
from runtime.request import Ending, FinishReason, Request, read_options, read_prompt
from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.params import SamplingParams
from runtime.text import StopText

STOP = 9


def make_request(*, max_tokens: int = 100, max_len: int = 1000, prompt_len: int = 3) -> Request:
    return Request([1] * prompt_len, SamplingParams(), max_tokens, frozenset({STOP}), max_len)


def test_a_stop_inside_a_block_ends_the_text_there() -> None:
    """E1."""
    request = make_request()
    assert request.commit([10, 11, STOP, 12, 13, 14]) == [10, 11]
    assert request.generated == [10, 11]
    assert (request.finish_reason, request.stop_token) == (FinishReason.STOP, STOP)


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


def test_what_stands_behind_the_end_is_not_emitted() -> None:
    """E11: of [d1, d2, EOS, d4, d5, bonus] three tokens count."""
    request = make_request()
    request.commit([10, 11, STOP, 12, 13, 14])
    assert request.num_emitted == 3
    assert request.commit([15]) == []
    assert request.num_emitted == 3


class Letters:
    """Tokens 0, 1, ... are the letters a, b, ...; nothing is ever unsettled."""

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids)

    def peek(self) -> str:
        return ""

    def flush(self) -> str:
        return ""


def entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token), np.zeros(0, np.int32), np.zeros(0, np.float32), 0)


def lettered(
    *stops: str, max_tokens: int = 100, min_tokens: int = 0, max_len: int = 1000
) -> tuple[Request, StopText]:
    stop = StopText(Letters(), stops, min_tokens=min_tokens)
    request = Request(
        [1] * 3,
        SamplingParams(),
        max_tokens,
        frozenset({STOP}),
        max_len,
        min_tokens=min_tokens,
        stop=stop,
        num_logprobs=0,
    )
    return request, stop


def commit(request: Request, word: str) -> str:
    """One round of letters; those that became certain."""
    ids = [ord(letter) - ord("a") for letter in word]
    return Letters().feed(request.commit(ids, [entry(token) for token in ids]))


def spelled(request: Request) -> str:
    return Letters().feed(request.generated)


def test_a_stop_string_cuts_text_ids_and_logprobs_at_one_place() -> None:
    """E7; the string spans rounds, and what it may take back is not handed out before."""
    request, stop = lettered("fed")
    assert commit(request, "abf") == "ab"
    assert commit(request, "e") == ""
    assert commit(request, "dcc") == ""
    assert (spelled(request), stop.take(), request.finish_reason) == ("ab", "ab", FinishReason.STOP)
    assert (stop.found, request.stop_token) == ("fed", None)
    assert [each.logprob for each in request.logprobs] == [0.0, -1.0]
    assert request.num_emitted == 5


def test_tokens_that_were_held_are_handed_out_when_the_stop_string_fails() -> None:
    request, stop = lettered("fed")
    assert [commit(request, word) for word in ("af", "e", "f", "ea")] == ["a", "", "fe", "fea"]
    assert stop.take() == "afefea"


@pytest.mark.parametrize(
    ("max_tokens", "text", "reason"),
    [
        (6, "ab", FinishReason.STOP),
        (5, "ab", FinishReason.STOP),  # the budget's last token completes it
        (4, "abfe", FinishReason.LENGTH),
        (2, "ab", FinishReason.LENGTH),
    ],
)
def test_the_earlier_of_stop_string_and_budget_wins(max_tokens, text, reason) -> None:
    """E6."""
    request, stop = lettered("fed", max_tokens=max_tokens)
    commit(request, "abfedc")
    assert (spelled(request), stop.take(), request.finish_reason) == (text, text, reason)


def test_the_earlier_of_stop_string_and_stop_token_wins() -> None:
    request, stop = lettered("fed")
    commit(request, "abfe" + chr(ord("a") + STOP) + "d")
    assert (spelled(request), stop.take()) == ("abfe", "abfe")
    assert (stop.found, request.stop_token) == (None, STOP)
    assert request.num_emitted == 5


def test_a_cancelled_text_has_what_was_held_and_takes_no_more() -> None:
    request, stop = lettered("fed")
    commit(request, "abfe")
    request.cancel()
    request.cancel()
    assert request.finish_reason is FinishReason.CANCELLED
    assert [commit(request, "d"), commit(request, "d")] == ["fe", ""]
    assert (spelled(request), stop.take(), len(request.logprobs)) == ("abfe", "abfe", 4)


def test_a_text_that_has_ended_cannot_be_cancelled() -> None:
    request = make_request()
    request.commit([STOP])
    request.cancel()
    assert request.finish_reason is FinishReason.STOP


@given(
    word=st.text("abf", min_size=1, max_size=20),
    sizes=st.lists(st.integers(1, 6), min_size=20, max_size=20),
    stops=st.lists(st.text("abf", min_size=1, max_size=3), max_size=2),
    max_tokens=st.integers(1, 12),
    min_tokens=st.integers(0, 4),
)
def test_stop_strings_do_not_depend_on_the_blocks_either(
    word, sizes, stops, max_tokens, min_tokens
):
    options = {"max_tokens": max_tokens, "min_tokens": min(min_tokens, max_tokens)}
    (one, one_text), (many, many_text) = lettered(*stops, **options), lettered(*stops, **options)
    for letter in word:
        commit(one, letter)
    handed, rest = "", word
    for size in sizes:
        handed += commit(many, rest[:size])
        assert spelled(many).startswith(handed), "handed out and taken back"
        rest = rest[size:]
    assert spelled(many) == spelled(one)
    assert many.finish_reason is one.finish_reason
    assert many.num_emitted == one.num_emitted
    assert len(many.logprobs) == len(many.generated)
    assert many_text.take() == one_text.take()
    if many.finish_reason is not None:
        assert handed == spelled(many)
        assert len(handed) >= options["min_tokens"]


def test_the_shortest_text_is_a_matter_of_the_law() -> None:
    """Not of looking away: an end-of-sequence that is drawn and then ignored is another law."""
    request = Request([1] * 3, SamplingParams(), 9, frozenset({STOP, 4}), 99, min_tokens=2)
    assert request.params == SamplingParams(banned_ids=(4, STOP), banned_before=5)
    assert make_request().params == SamplingParams()


@pytest.mark.parametrize("token", [-1, 10, 10**30])
def test_an_id_outside_the_vocabulary_is_refused_by_name(token: int) -> None:
    with pytest.raises(UsageError, match=f"token id {token}, the vocabulary ends at 9"):
        read_prompt([1, token], max_len=8, vocab_size=10)


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert read_prompt([1] * 7, max_len=8, vocab_size=10) == [1] * 7
    with pytest.raises(CapacityError, match="8 tokens"):
        read_prompt([1] * 8, max_len=8, vocab_size=10)


def test_options_become_plain_values() -> None:
    plain = read_options(vocab_size=10)
    assert plain == Ending(128, 0, (), (), None)
    given_ones = read_options(
        vocab_size=10,
        max_tokens=np.int64(5),  # type: ignore[arg-type]
        min_tokens=5,
        stop="\n\n",
        stop_token_ids=np.array([9, 0]),  # type: ignore[arg-type]
        logprobs=3,
    )
    assert given_ones == Ending(5, 5, ("\n\n",), (9, 0), 3)
    assert read_options(vocab_size=None, stop_token_ids=[2**70]).stop_token_ids == (2**70,)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_tokens": 0}, "max-tokens is 0"),
        ({"min_tokens": -1}, "min-tokens is -1"),
        ({"min_tokens": 6, "max_tokens": 5}, "min-tokens is 6, more than max-tokens"),
        ({"stop": ""}, "stop has ''"),
        ({"stop": ["a", ""]}, "stop has ''"),
        ({"stop": [1]}, "stop has 1"),
        ({"stop": b"a"}, "stop has 97"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": "a\ud800"}, "not valid UTF-8"),
        ({"bad_words": ["\udfff"]}, "not valid UTF-8"),
        ({"stop_token_ids": [10]}, "token id 10, the vocabulary ends at 9"),
        ({"stop_token_ids": [-1]}, "a stop token id is -1"),
        ({"stop_token_ids": [True]}, "a stop token id is True"),
        ({"stop_token_ids": 5}, "stop-token-ids is 5"),
        ({"stop_token_ids": "5"}, "stop-token-ids is '5'"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"logprobs": True}, "logprobs is True"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(options, reason) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        read_options(vocab_size=10, **options)
