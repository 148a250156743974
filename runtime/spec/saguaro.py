"""Which C of Saguaro sampling pays: what the ratio rule would do along texts of the target.

A text's tokens are drawn from the target's law p. So along a text, at a place whose draft law is
q, a drafted token is accepted and equal to the text's with probability min(1, q / p) of that
token, and all that may happen instead follows from p and q there: some token is accepted with
probability sum min(p, q), the rejected one follows max(0, q - p), the bonus token max(0, p - q).
So each place gives expectations, and no draw is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.spec.cost.chain import RoundSeconds
from runtime.spec.cost.shares import hit_share
from runtime.spec.cost.times import PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.fanout import covered, fan_out

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SCALES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0)
SLACK = 0.005
"""Predicted gains below this share are the texts' chance, not C's merit."""
MAX_PASSES = 8
"""The fan-out follows from the laws and the laws from the fan-out; a few passes settle both."""


@dataclass(frozen=True, slots=True, eq=False)
class PairLaws:
    """Both models' laws at N places of texts that the target wrote.

    draft         float64 [N, M], the law a token is drafted from, likeliest first, 0 beyond it
    target        float64 [N, M], the target's probabilities of the same ids
    token_target  float64 [N], the target's probability of the text's token
    token_rank    int64 [N], where among the M ids the text's token is, M if nowhere
    left          int64 [N], places of the same text from here on, this one included
    """

    draft: FloatArray
    target: FloatArray
    token_target: FloatArray
    token_rank: IntArray
    left: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Rounds with K drafted tokens under one C: Pr(k) [K + 1], the fan-out [K + 1] that settles,
    how often a hit follows, and how often one follows a round without drafts."""

    accepted: FloatArray
    counts: IntArray
    hit_rate: float
    hit_rate_none: float


def best_scale(
    laws: PairLaws,
    times: PairTimes,
    num_draft: int,
    width: int,
    fallback: Fallback,
    scales: Sequence[float] = SCALES,
) -> float:
    """The C with the most predicted tokens a second; of those within SLACK of it the largest.

    Under LOOKUP misses count as under ZERO: what is copied from a text has no law to shape.
    """
    rates = [
        rate(times, forecast(laws, scale, num_draft, width), width, fallback) for scale in scales
    ]
    return max(
        scale
        for scale, tokens_s in zip(scales, rates, strict=True)
        if tokens_s >= (1 - SLACK) * max(rates)
    )


def rate(times: PairTimes, found: Forecast, width: int, fallback: Fallback) -> float:
    """Predicted tokens a second of one row of ``ssd`` with that forecast and W = ``width``."""
    num_draft = len(found.accepted) - 1
    tokens = float(found.accepted @ np.arange(1, num_draft + 2))
    cost = RoundSeconds(times, 1, num_draft, width)
    if fallback is Fallback.JIT:
        after_miss, missed_tokens, missed_s = found.hit_rate, tokens, cost.at_once
    else:
        after_miss, missed_tokens, missed_s = found.hit_rate_none, 1.0, cost.bare
    hits = hit_share(found.hit_rate, after_miss)
    seconds = hits * cost.drafted + (1 - hits) * missed_s
    return (hits * tokens + (1 - hits) * missed_tokens) / seconds


def forecast(laws: PairLaws, scale: float, num_draft: int, width: int) -> Forecast:
    """Rounds that start at each place, averaged. Raises ValueError if no text is K + 1 long."""
    starts = np.flatnonzero(laws.left > num_draft)
    if starts.size == 0:
        raise ValueError(f"no text has {num_draft + 1} places")
    counts = np.full(num_draft + 1, width // (num_draft + 1))
    for _ in range(MAX_PASSES):
        accepted, ranks = _round_laws(laws, starts, scale, counts, width)
        settled = fan_out(accepted, ranks, width)
        if (settled == counts).all():
            break
        counts = settled
    return Forecast(
        accepted=accepted,
        counts=settled,
        hit_rate=covered(accepted, ranks, settled),
        hit_rate_none=float(_leading(laws.target, width)[starts].mean()),
    )


def shaped(draft: FloatArray, num_prepared: int, scale: float) -> FloatArray:
    """``runtime.sampling.ratio.saguaro`` of each row [N, M]."""
    num_shaped = num_prepared + 1
    if num_prepared == 0 or scale == 1 or num_shaped >= draft.shape[1]:
        return draft
    shaped = draft.copy()
    shaped[:, :num_shaped] *= scale
    shaped /= np.maximum(shaped.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    reaches_beyond = draft[:, num_shaped] > 0
    return np.where(reaches_beyond[:, None], shaped, draft)


def _round_laws(
    laws: PairLaws, starts: IntArray, scale: float, counts: IntArray, width: int
) -> tuple[FloatArray, FloatArray]:
    """Pr(k) [K + 1] and h_k(f) [K + 1, W] of rounds whose drafts are shaped for ``counts``."""
    num_draft = len(counts) - 1
    accepted = np.zeros(num_draft + 1)
    ranks = np.zeros((num_draft + 1, width))
    reached = np.ones(starts.size)  # probability that the first k drafts are the text's, each
    for k in range(num_draft + 1):
        places = starts + k
        target = laws.target[places]
        if k == num_draft:
            within = reached[:, None] * _first(target, width)
            accepted[k] = reached.mean()
        else:
            q = shaped(laws.draft[places], int(counts[k]), scale)
            overlap = np.minimum(q, target)
            stopped = reached * (1 - overlap.sum(axis=1))
            accepted[k] = stopped.mean()
            within = reached[:, None] * _rejected_within(q - overlap, target - overlap, width)
            reached = reached * _passes(laws, places, q)
        cumulative = within.mean(axis=0) / max(accepted[k], np.finfo(np.float64).tiny)
        ranks[k] = np.diff(cumulative, prepend=0.0)
    return accepted / accepted.sum(), ranks  # 1 in expectation, not on each sample


def _rejected_within(excess: FloatArray, rest: FloatArray, width: int) -> FloatArray:
    """Probability [N, W] of a rejection whose bonus token is among the first 1, 2, ... W ids, the
    rejected token left out of them.

    ``excess`` and ``rest`` [N, M] are max(0, q - p) and max(0, p - q). They are never both
    positive, so leaving out the rejected token means nothing but one more id.
    """
    mass = np.maximum(excess.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    inside = _first(excess, width) / mass  # the rejected token is among the first f
    prepared = _first(rest, width + 1)
    return np.asarray(inside * prepared[:, 1:] + (1 - inside) * prepared[:, :-1])


def _passes(laws: PairLaws, places: IntArray, q: FloatArray) -> FloatArray:
    """Probability that the drafted token is accepted, given that it is the text's token."""
    padded = np.pad(q, ((0, 0), (0, 1)))
    drawn = padded[np.arange(places.size), laws.token_rank[places]]
    return np.minimum(1, drawn / laws.token_target[places])


def _first(probs: FloatArray, num: int) -> FloatArray:
    """Mass of the first 1, 2, ... num ids: [N, num]."""
    short = max(0, num - probs.shape[1])
    return np.pad(probs[:, :num], ((0, 0), (0, short))).cumsum(axis=1)


def _leading(probs: FloatArray, num: int) -> FloatArray:
    return _first(probs, num)[:, -1] if num else np.zeros(len(probs))
