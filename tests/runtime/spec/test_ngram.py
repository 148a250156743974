"""The index of a text against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec import ngram
from runtime.spec.ngram import LONGEST, MAX_TRIES, NO_MATCH, Evidence, Match, NgramIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def match_length(text: list[int], place: int) -> int:
    """How many tokens before ``place`` equal those before the end."""
    length = 0
    while length < min(LONGEST, place) and text[place - 1 - length] == text[len(text) - 1 - length]:
        length += 1
    return length


def by_search(text: list[int], num: int) -> Match:
    """The definition: longest match with the text's end, of equal ones the latest. Evidence are the
    places with a pair of tokens, where any has, those behind the latest of full length left out."""
    best, longest = 0, 1
    for place in range(1, len(text)):
        length = match_length(text, place)
        if length >= longest:
            best, longest = place, length
    if not best or num < 1:
        return NO_MATCH
    grown = list(text)
    for _ in range(num):
        grown.append(grown[len(grown) - (len(text) - best)])
    found = [place for place in range(1, len(text)) if match_length(text, place) >= min(2, longest)]
    if longest == LONGEST:
        found = [place for place in found if place >= best]
    if len({text[place] for place in found}) > 1:
        evidence = Evidence.DISPUTED
    else:
        evidence = Evidence.AGREED if len(found) > 1 else Evidence.ONE
    return Match(longest, tuple(grown[len(text) :]), evidence)


@given(text=texts, num=st.integers(0, 9))
def test_what_is_found_is_what_a_search_of_the_whole_text_finds(text, num):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "MAX_TRIES", len(text) + 1)
        assert NgramIndex(text).find(num) == by_search(text, num)


@given(text=st.lists(st.integers(0, 2), max_size=300), num=st.integers(1, 9))
def test_what_is_found_did_follow_the_same_tokens_however_few_places_are_tried(text, num):
    """With the bound of tries it may miss the longest match, but never makes one up."""
    found = NgramIndex(text).find(num)
    if found is NO_MATCH or found.length == 0:
        assert not text or text[-1] not in text[:-1]
        return
    places = [place for place in range(1, len(text)) if match_length(text, place) >= found.length]
    grown = [[*text, *found.tokens][place : place + num] for place in places]
    assert list(found.tokens) in grown


@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_extending_piece_by_piece_is_the_same_as_at_once(text, cuts):
    index, start = NgramIndex(), 0
    for end in [*sorted(cut for cut in cuts if cut <= len(text)), len(text)]:
        index.extend(text[start:end])
        index.find(3)
        start = end
    assert index.find(5) == NgramIndex(text).find(5)


def test_the_longest_match_counts_before_the_latest():
    #         1 2 3 -> 8          2 3 -> 9        1 2 3 -> ?
    index = NgramIndex([1, 2, 3, 8, 5, 2, 3, 9, 4, 1, 2, 3])
    assert index.find(2) == Match(3, (8, 5), Evidence.DISPUTED)


def test_of_equal_matches_the_latest_counts():
    assert NgramIndex([1, 2, 7, 1, 2, 8, 1, 2]).find(1) == Match(2, (8,), Evidence.DISPUTED)


def test_a_single_token_is_a_match_where_no_pair_is():
    found = NgramIndex([5, 1, 6, 2, 1, 7, 3, 1]).find(2)
    assert found == Match(1, (7, 3), Evidence.DISPUTED)


def test_places_that_went_on_alike_agree():
    assert NgramIndex([1, 2, 7, 4, 1, 2, 7, 5, 1, 2]).find(1) == Match(2, (7,), Evidence.AGREED)
    assert NgramIndex([1, 2, 7, 1, 2]).find(1) == Match(2, (7,), Evidence.ONE)
    assert NgramIndex([3, 1, 7, 4, 1, 7, 5, 1]).find(1) == Match(1, (7,), Evidence.AGREED)


def test_a_repeated_phrase_repeats():
    """Copying must not stop where the copied text ends: "abcabc" goes on."""
    assert NgramIndex([1, 2, 3] * 3).find(7)[:2] == (6, (1, 2, 3, 1, 2, 3, 1))
    assert NgramIndex([5, 5, 5]).find(4)[:2] == (2, (5, 5, 5, 5))
    assert NgramIndex("abcabcabc").find(4).tokens == ("a", "b", "c", "a")  # L3


@pytest.mark.parametrize("text", [[], [1], [1, 2, 3]])
def test_new_endings_propose_nothing(text):
    assert NgramIndex(text).find(1) == NO_MATCH


def test_nothing_is_found_for_no_room():
    """At a text's end there is no token to draft; a match of none would be learnt from."""
    assert NgramIndex([1, 1]).find(0) == NO_MATCH


@given(
    text=st.one_of(
        st.builds(lambda token, times: [token] * times, st.integers(0, 3), st.integers(0, 4000)),
        st.builds(lambda block, times: block * times, texts, st.integers(0, 60)),
    )
)
def test_a_search_costs_no_more_however_long_the_text(text):
    """Each earlier place may match; comparing all of them makes a round slower and slower."""
    index, calls = NgramIndex(text), []
    real = NgramIndex._match_length
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            NgramIndex, "_match_length", lambda self, at: calls.append(at) or real(self, at)
        )
        index.find(3)
    assert len(calls) <= MAX_TRIES


def test_what_follows_the_end_is_never_part_of_the_match():
    """The text's own end must not be found as its earlier occurrence."""
    assert NgramIndex([9, 1, 2]).find(2) == NO_MATCH
    assert NgramIndex([1, 2, 1, 2]).find(2) == Match(2, (1, 2))
