"""What it costs that a draft has to read a text before it can draft for it."""

from __future__ import annotations

from engines.profiles import PROMPT_CHUNK
from runtime.spec.cost import PairTimes
from runtime.spec.plan import Outlook

LEAST_TOKENS = 16
"""A change of mode costs something even where there is little to read."""
MOST_OFF = 8.0
"""The forecast is corrected by this factor at most."""
HOPE = 0.1
"""Share of the time of what is left to emit that reading may cost where nobody knows yet what the
draft is worth."""
FORGOTTEN = 0.9
"""Of the lengths of texts, kept where another one begins."""


class Reading:
    """Forecasts reading times and learns what readings took; remembers how long texts are."""

    def __init__(self, times: PairTimes) -> None:
        self._token_s = times.draft_beside.seconds(1, PROMPT_CHUNK) / PROMPT_CHUNK
        self._factor = 1.0
        self._num_read = 0
        self._lost_s = 0.0
        self._num_texts = self._num_emitted = 0.0

    def seconds(self, num_tokens: int) -> float:
        """To be lost by reading so many."""
        return self._factor * self._token_s * max(LEAST_TOKENS, num_tokens) if num_tokens else 0.0

    def begins(self, num_tokens: int) -> None:
        """The draft is asked for, and has so many to read."""
        self._num_read += num_tokens

    def lost(self, seconds: float) -> None:
        """A round took so much longer than one for which nothing was to be read."""
        self._lost_s += seconds

    def ends(self) -> None:
        """It drafts."""
        if self._num_read:
            expected_s = self.seconds(self._num_read)
            ratio = max(self._lost_s, 0.0) / expected_s if expected_s else 1.0
            factor = self._factor * min(MOST_OFF, max(1 / MOST_OFF, ratio)) ** 0.5
            self._factor = min(MOST_OFF, max(1 / MOST_OFF, factor))
        self.breaks_off()

    def breaks_off(self) -> None:
        """What was under way taught nothing."""
        self._num_read, self._lost_s = 0, 0.0

    def text_begins(self) -> None:
        """Another text: those before were as long as they were."""
        self._num_texts = FORGOTTEN * self._num_texts + 1
        self._num_emitted *= FORGOTTEN

    def emitted(self, num_tokens: int) -> None:
        """Texts went on."""
        self._num_emitted += num_tokens

    def left(self, outlook: Outlook, batch: int) -> float:
        """Tokens that ``batch`` texts are likely to emit yet: what they may, or as many as texts
        have had."""
        if self._num_texts < 1.5:  # the first one is not over
            return outlook.num_left
        return min(outlook.num_left, batch * self._num_emitted / (self._num_texts - 1))
