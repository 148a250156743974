"""Stop strings: where a text ends before one, and what may be shown while that is uncertain."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Protocol


class TextSource(Protocol):
    """A ``Detokenizer``, or what stands in for it."""

    def feed(self, ids: Iterable[int]) -> str: ...
    def peek(self) -> str: ...
    def flush(self) -> str: ...


class StopText:
    """The text of one answer, token by token, cut before the first stop string in it.

    The first is the one that is complete first; of several complete at the same character, the
    longest. Neither the prompt nor the first ``min_tokens`` tokens' text takes part. What the
    pieces of ``take`` make is final: text that may be the beginning of a stop string waits in
    here, and nothing else does. The tokens kept are the fewest whose text has all that stands
    before the stop string, so one that the string begins inside of is kept.
    """

    def __init__(self, source: TextSource, stops: Sequence[str], *, min_tokens: int = 0) -> None:
        """``stops`` are not empty strings; there may be none of them."""
        self.found: str | None = None
        """The stop string that ended the text."""
        self._source = source
        self._stops = _those_that_can_be_first(tuple(stops))
        self._min_tokens = min_tokens
        self._ready: list[str] = []
        self._held = ""
        self._num_shown = 0
        self._starts: list[int] = []  # of each token: characters of text before it
        self._unplaced: list[str] = []  # of later ones: what was unsettled before it

    @property
    def num_certain(self) -> int:
        """How many tokens no stop string can take back: the first ``min_tokens``, and those of
        which, or of later ones, some text has been shown."""
        return self._num_kept(self._num_shown)

    def push(self, token: int) -> int | None:
        """Take the next token: None, or, when a stop string is complete, how many of all tokens
        stand before it. Nothing may be pushed behind a stop string."""
        self._unplaced.append(self._source.peek())
        piece = self._source.feed([token])
        return self._add(piece) if piece else None

    def flush(self) -> int | None:
        """The text ends here, and what is held is text; answers as ``push`` does."""
        kept = self._add(self._source.flush())
        self._show(len(self._held))
        return kept

    def take(self) -> str:
        """Text that became certain since the last call."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _add(self, piece: str) -> int | None:
        self._place(piece)
        self._held += piece
        self._show(self._num_exempt())
        first = first_stop(self._held, self._stops)
        if first is not None:
            start, self.found = first
            kept = self._num_kept(self._num_shown + start)
            self._show(start)
            self._held = ""
            return kept
        self._show(len(self._held) - num_unsure(self._held, self._stops))
        return None

    def _place(self, piece: str) -> None:
        """Find where the latest tokens' text starts, now that ``piece`` follows. What a token
        found unsettled is text before it as far as it came out so: half a character may have."""
        end = self._num_shown + len(self._held)
        starts = [end + num_common(unsettled, piece) for unsettled in self._unplaced]
        self._starts += accumulate(starts, max)
        self._unplaced.clear()

    def _num_exempt(self) -> int:
        """Characters held that belong to the first ``min_tokens`` tokens."""
        if len(self._starts) <= self._min_tokens:
            return len(self._held)
        return self._starts[self._min_tokens] - self._num_shown

    def _num_kept(self, num_characters: int) -> int:
        """The fewest tokens whose text has so many characters; ``min_tokens`` at least."""
        num_tokens = len(self._starts) + len(self._unplaced)
        return max(bisect_left(self._starts, num_characters), min(self._min_tokens, num_tokens))

    def _show(self, count: int) -> None:
        if count > 0:
            self._ready.append(self._held[:count])
            self._held = self._held[count:]
            self._num_shown += count


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that is complete first, the longest of equals, behind where it begins."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


@lru_cache(maxsize=1)  # it compares all pairs, and the prompts of one call have the same stops
def _those_that_can_be_first(stops: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(stop for stop in stops if _can_be_first(stop, stops))


def _can_be_first(stop: str, stops: Sequence[str]) -> bool:
    """Whether no other is always complete before it; its beginning need not be waited for."""
    return all(other not in stop[:-1] for other in stops)


def num_unsure(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that is the beginning of a stop string, not all."""
    return max((_num_begun(text, stop) for stop in stops), default=0)


def num_common(one: str, other: str) -> int:
    """Length of the beginning that two strings share."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def _num_begun(text: str, stop: str) -> int:
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
