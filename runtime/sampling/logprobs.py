"""Log-probabilities of emitted tokens: the target's own, before anything a request asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from runtime.sampling.logits import check_logit, top_ids

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs:
    """How likely one emitted token was, and which tokens were likeliest at its place.

    logprob       natural logarithm of the token's probability
    top_ids       int32 [n], the likeliest ids, likeliest first, lower ids first if equal
    top_logprobs  float32 [n], theirs
    rank          how many ids come before the token in that order; 0 is the likeliest
    """

    logprob: float
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    rank: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenLogprobs) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def _value(self) -> tuple[object, ...]:
        top = self.top_ids.tolist(), self.top_logprobs.tolist()
        return self.logprob, self.rank, *map(tuple, top)


def token_logprobs(logits: FloatArray, token: int, num_top: int) -> TokenLogprobs:
    """The log-softmax of the target's logits float32 [V] at an emitted token.

    Temperature, cuts and bans do not enter: it is the model's law, whatever the token was drawn
    from. ``num_top`` beyond V gives V entries. Raises UsageError for an id or a number that
    cannot be, BackendError on logits with NaN, +inf, or nothing above -inf.
    """
    if not 0 <= token < logits.size:
        raise UsageError(f"token id {token} is outside the {logits.size} logits of its place")
    if num_top < 0:
        raise UsageError(f"the number of likeliest tokens is {num_top}, expected at least 0")
    shift = _log_total(logits)
    ids = top_ids(logits, num_top)
    own = logits[token]
    before = np.count_nonzero(logits > own) + np.count_nonzero(logits[:token] == own)
    return TokenLogprobs(
        logprob=float(own) - shift,
        top_ids=ids.astype(np.int32),
        top_logprobs=(logits[ids] - np.float64(shift)).astype(np.float32),
        rank=int(before),
    )


def _log_total(logits: FloatArray) -> float:
    """log of the sum of exp(logits): terms in float32, their sum in float64."""
    peak = check_logit(logits.max())
    terms = logits - np.float32(peak)
    return peak + float(np.log(np.exp(terms, out=terms).sum(dtype=np.float64)))
