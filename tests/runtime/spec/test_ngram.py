"""Lookup drafts against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec import ngram
from runtime.spec.ngram import LONGEST, SHORTEST, NgramIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def by_search(text: list[int], num: int) -> tuple[int, ...]:
    """The definition: longest match with the text's end, of equal ones the latest."""
    best, longest = 0, SHORTEST - 1
    for place in range(SHORTEST, len(text)):
        length = 0
        while (
            length < min(LONGEST, place)
            and text[place - 1 - length] == text[len(text) - 1 - length]
        ):
            length += 1
        if length > longest or (length == longest and best):
            best, longest = place, length
    if not best:
        return ()
    grown = list(text)
    for _ in range(num):
        grown.append(grown[len(grown) - (len(text) - best)])
    return tuple(grown[len(text) :])


@given(text=texts, num=st.integers(0, 9))
def test_proposals_are_those_of_a_search_of_the_whole_text(text, num):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "MAX_TRIES", len(text) + 1)
        assert NgramIndex(text).propose(num) == by_search(text, num)


@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_extending_piece_by_piece_is_the_same_as_at_once(text, cuts):
    index, start = NgramIndex(), 0
    for end in [*sorted(cut for cut in cuts if cut <= len(text)), len(text)]:
        index.extend(text[start:end])
        index.propose(3)
        start = end
    assert index.propose(5) == NgramIndex(text).propose(5)


def test_the_longest_match_counts_before_the_latest():
    #         1 2 3 -> 8          2 3 -> 9        1 2 3 -> ?
    index = NgramIndex([1, 2, 3, 8, 5, 2, 3, 9, 4, 1, 2, 3])
    assert index.propose(2) == (8, 5)


def test_of_equal_matches_the_latest_counts():
    assert NgramIndex([1, 2, 7, 1, 2, 8, 1, 2]).propose(1) == (8,)


def test_a_repeated_phrase_repeats():
    """Copying must not stop where the copied text ends: "abcabc" goes on."""
    assert NgramIndex([1, 2, 3] * 3).propose(7) == (1, 2, 3, 1, 2, 3, 1)
    assert NgramIndex([5, 5, 5]).propose(4) == (5, 5, 5, 5)


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 3], [1, 2, 3, 1], [2, 2, 1, 2]])
def test_new_endings_propose_nothing(text):
    """One token alone matches by chance: the draft would be wrong more often than it pays."""
    assert NgramIndex(text).propose(1) == ()


def test_a_text_of_one_token_costs_a_bounded_search(monkeypatch):
    """Each earlier place matches; comparing all of them would make a round slower and slower."""
    index, calls = NgramIndex([7] * 5000), []
    real = NgramIndex._match_length
    monkeypatch.setattr(
        NgramIndex, "_match_length", lambda self, place: calls.append(place) or real(self, place)
    )
    assert index.propose(3) == (7, 7, 7)
    assert len(calls) <= ngram.MAX_TRIES


def test_what_follows_the_end_is_never_part_of_the_match():
    """The text's own end must not be found as its earlier occurrence."""
    assert NgramIndex([9, 1, 2]).propose(2) == ()
    assert NgramIndex([1, 2, 1, 2]).propose(2) == (1, 2)
