"""Lookup drafts: what followed the last time that the text's last tokens stood there.

"Prompt lookup decoding". The drafts are free and good where a text repeats or quotes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHORTEST, LONGEST = 2, 16
"""Tokens that must match at least, and beyond which a longer match is not looked for."""
MAX_TRIES = 32
"""Earlier places compared at most: a text that repeats one token has as many as it has tokens."""


class NgramIndex:
    """The prompt and output of one row, searchable for its own end. ``extend`` costs the same for
    every token, ``propose`` at most MAX_TRIES * LONGEST comparisons."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        # Where each n-gram of SHORTEST tokens last ended, and for each place where its n-gram
        # ended before that: a chain from new to old. A place is the index after the n-gram.
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = [0]
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """The text goes on with these tokens."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            gram = tuple(self._tokens[-SHORTEST:])
            self._before.append(self._latest.get(gram, 0))
            if end >= SHORTEST:
                self._latest[gram] = end

    def propose(self, num: int) -> tuple[int, ...]:
        """Up to ``num`` tokens likely to follow; none where the last tokens are new.

        Of the earlier places with the same last tokens the one with the longest match counts, of
        those the latest. Where its continuation reaches the text's end it goes on with itself: a
        repeated phrase repeats.
        """
        place = self._best_place()
        if place == 0 or num < 1:
            return ()
        period = len(self._tokens) - place
        return tuple(self._tokens[place + step % period] for step in range(num))

    def _best_place(self) -> int:
        """The place to continue from, 0 for none."""
        best, longest = 0, 0
        place = self._before[-1]
        for _ in range(MAX_TRIES):
            if place == 0 or longest == LONGEST:
                break
            length = self._match_length(place)
            if length > longest:
                best, longest = place, length
            place = self._before[place]
        return best

    def _match_length(self, place: int) -> int:
        """How many tokens before ``place`` equal those before the end, LONGEST at most."""
        tokens: Sequence[int] = self._tokens
        end = len(tokens)
        limit = min(LONGEST, place)
        for length in range(limit):
            if tokens[place - 1 - length] != tokens[end - 1 - length]:
                return length
        return limit
