"""An index of a text by its tokens: where its last tokens stood before, and what followed there.

"Prompt lookup decoding". The drafts are free and good where a text repeats or quotes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

LONGEST = 16
"""Tokens beyond which a longer match is not looked for."""
MAX_TRIES = 32
"""Earlier places compared at most: a text that repeats one token has as many as it has tokens."""


class Evidence(Enum):
    """What followed at the earlier places with the same last tokens (the last two, or the last one
    where these two are new)."""

    ONE = 1  # there is one such place
    AGREED = 2  # the same token at all of them
    DISPUTED = 3


class Match(NamedTuple):
    """``tokens`` followed where the text's last ``length`` tokens stood before."""

    length: int
    tokens: tuple[int, ...]
    evidence: Evidence = Evidence.ONE


NO_MATCH = Match(0, ())


class NgramIndex:
    """The prompt and output of one row, searchable for its own end. ``extend`` costs the same for
    every token, ``find`` at most MAX_TRIES * LONGEST comparisons."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        # Where each token and each pair last ended, and for each place where its token and its pair
        # ended before that: chains from new to old. A place is the index after the token or pair.
        self._latest_token: dict[int, int] = {}
        self._latest_pair: dict[tuple[int, int], int] = {}
        self._pair_before: list[int] = [0]
        self._token_before: list[int] = [0]
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """The text goes on with these tokens."""
        last = self._tokens[-1] if self._tokens else None
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            self._token_before.append(self._latest_token.get(token, 0))
            self._latest_token[token] = end
            before = 0
            if last is not None:
                pair = last, token
                before = self._latest_pair.get(pair, 0)
                self._latest_pair[pair] = end
            self._pair_before.append(before)
            last = token

    def find(self, num: int) -> Match:
        """Up to ``num`` tokens likely to follow; NO_MATCH where the last token is new.

        Of the earlier places with the same last tokens the one with the longest match counts, of
        those the latest. Where its continuation reaches the text's end it goes on with itself: a
        repeated phrase repeats.
        """
        place, length, evidence = self._best_place()
        if place == 0 or num < 1:
            return NO_MATCH
        period = len(self._tokens) - place
        tokens = self._tokens
        copied = tuple(tokens[place + step % period] for step in range(num))
        return Match(length, copied, evidence)

    def _best_place(self) -> tuple[int, int, Evidence]:
        """The place to continue from, 0 for none, how many tokens match there, and what the places
        that were compared say together."""
        has_pair = self._pair_before[-1] != 0
        chain = self._pair_before if has_pair else self._token_before
        place, best, longest = chain[-1], 0, 0
        num_places, followers = 0, set[int]()
        for _ in range(MAX_TRIES):
            if place == 0 or longest == LONGEST:
                break
            length = self._match_length(place) if has_pair else 1
            if length > longest:
                best, longest = place, length
            num_places += 1
            followers.add(self._tokens[place])
            place = chain[place]
        if len(followers) > 1:
            return best, longest, Evidence.DISPUTED
        return best, longest, Evidence.AGREED if num_places > 1 else Evidence.ONE

    def _match_length(self, place: int) -> int:
        """How many tokens before ``place`` equal those before the end, LONGEST at most."""
        tokens: Sequence[int] = self._tokens
        end = len(tokens)
        limit = min(LONGEST, place)
        for length in range(limit):
            if tokens[place - 1 - length] != tokens[end - 1 - length]:
                return length
        return limit
