"""The part of a text's law that hangs on its own tokens: penalties, forbidden words, a grammar.

A rule looks at the rows of a block in order, and at row i only once the i drafted tokens before it
are accepted. So one state serves the whole block: it takes each accepted token before the next
row is adjusted, drafted tokens count as text from there on, and nothing is ever taken back. It
does not depend on which tokens were drafted, only on those emitted: the law is the same in every
mode.

In this order, one float32 operation each (``plugins.law.reference``):

    repetition   a token of prompt or text: l / r where l > 0, l * r otherwise
    frequency    l - f * (how often the text has it)
    presence     l - s where the text has it
    words        -inf where the token would complete a forbidden sequence
    grammar      -inf where the token would leave the grammar
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.sampling.params import SamplingParams

FloatArray = npt.NDArray[np.float32]

_MOST = 1e38
"""So large a penalised logit may be: the difference of two of them is a float32 still."""


class Constraint(Protocol):
    """A grammar's state in one text (``runtime.grammar``). One thread at a time."""

    def allowed(self, vocab_size: int) -> npt.NDArray[np.bool_] | None:
        """Which tokens may come next, bool [V], at least one; None: all, the text is over."""

    def take(self, token: int) -> None:
        """The text goes on with ``token``, one of those allowed."""


class TextLaw:
    """Belongs to one text, and to the target's side alone. It stands at the place behind the
    tokens taken so far."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        vocab_size: int,
        constraint: Constraint | None = None,
    ) -> None:
        """``vocab_size`` V of the logits. ``constraint`` is at the text's beginning."""
        self._params = params
        self._constraint = constraint
        self._generated = np.zeros(vocab_size, np.float32)
        self._seen = np.zeros(vocab_size, bool)
        self._seen[list(prompt)] = True
        sequences = params.banned_sequences
        self._never = [only for only, *rest in sequences if not rest]
        self._words: dict[int, list[tuple[list[int], int]]] = {}  # by the last but one token
        for *begun, last in sequences:
            if begun:
                self._words.setdefault(begun[-1], []).append((begun, last))
        self._kept = max((len(each) - 1 for each in sequences), default=0)
        self._tail: list[int] = []

    def adjusted(self, row: FloatArray) -> FloatArray:
        """A new float32 [V] of the target's logits [V] at this place."""
        edited = row.copy()
        if self._params.penalises:
            self._penalise(edited)
        edited[self._forbidden()] = -np.inf
        if self._constraint is not None:
            allowed = self._constraint.allowed(row.size)
            if allowed is not None:
                edited[~allowed] = -np.inf
        return edited

    def take(self, token: int) -> None:
        """The text goes on with ``token``."""
        self._generated[token] += 1
        self._seen[token] = True
        if self._kept:
            self._tail = [*self._tail, token][-self._kept :]
        if self._constraint is not None:
            self._constraint.take(token)

    def _penalise(self, row: FloatArray) -> None:
        params, ids = self._params, np.flatnonzero(self._seen)
        before, counts = row[ids], self._generated[ids]
        penalty = np.float32(params.repetition_penalty)
        with np.errstate(over="ignore"):
            after = np.where(before > 0, before / penalty, before * penalty)
            after -= np.float32(params.frequency_penalty) * counts
            after -= np.float32(params.presence_penalty) * (counts > 0)
        # However large the numbers: what had mass keeps some, so that a law is left.
        row[ids] = np.clip(after, -_MOST, _MOST, where=np.isfinite(before), out=after)

    def _forbidden(self) -> list[int]:
        """Last tokens of the sequences that the text has all other tokens of at its end."""
        tail = self._tail
        begun_here = self._words.get(tail[-1], ()) if tail else ()
        return [
            *self._never,
            *(last for begun, last in begun_here if tail[-len(begun) :] == begun),
        ]
