"""From logits to the law a token is drawn from: top-k, top-p, min-p, temperature.

The law is softmax(logits / temperature), cut in this order:

    top_k    the k largest logits stay
    top_p    of these, renormalised, the fewest most likely ones stay whose mass reaches top_p
    min_p    of these, the ones at least min_p times as likely as the most likely one stay

Equal logits at a cut of top_k or top_p: lower ids stay. At the cut of min_p all of them stay.
The most likely token (of equal ones, the lowest id) survives every cut.

Cutting never sorts a vocabulary: a cheap lower bound singles out a few hundred ids, and only
those are ranked.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engines.errors import BackendError
from runtime.sampling.params import SamplingParams

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.intp]

_GROUP_SIZE = 64
_LOWEST_LOGIT = float(np.finfo(np.float32).min)


def process(logits: FloatArray, params: SamplingParams) -> FloatArray:
    """Set the logits that the parameters cut to -inf; temperature is not applied.

    Takes and returns float32 [..., V]. Returns `logits` itself when the parameters ask for no
    cut, a new array otherwise. Raises BackendError on a row with NaN, +inf, or nothing above -inf.
    """
    if not params.truncates:
        return logits
    rows = logits.reshape(-1, logits.shape[-1])
    processed = np.full_like(rows, -np.inf)
    for row, out in zip(rows, processed, strict=True):
        ids = survivors(row, params)
        kept = slice(None) if ids is None else ids
        out[kept] = row[kept]
    return processed.reshape(logits.shape)


def law(logits: FloatArray, params: SamplingParams) -> npt.NDArray[np.float64]:
    """The probabilities a token is drawn with: logits float32 [..., V] -> float64 [..., V].

    Greedy: all mass on the largest logit (the lowest id of equal ones). Raises BackendError
    as `process` does.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    probs = np.zeros(rows.shape)
    for row, out in zip(rows, probs, strict=True):
        if params.is_greedy:
            best = int(row.argmax())
            check_logit(row[best])
            out[best] = 1.0
            continue
        ids = survivors(row, params)
        kept = slice(None) if ids is None else ids
        weights = softmax_weights(row[kept], check_logit(row.max()), params.temperature)
        out[kept] = weights / weights.sum()
    return probs.reshape(logits.shape)


def survivors(row: FloatArray, params: SamplingParams) -> IdArray | None:
    """The ids of one row [V] that no cut removes, ascending; None means all of them.

    They are always the first of `top_ids`' ranking: no cut keeps an id and drops a likelier one.
    Raises BackendError as `process` does, when there is something to cut.
    """
    if not params.truncates:
        return None
    peak = check_logit(row.max())
    ids: IdArray | None = None  # most likely first
    if 0 < params.top_k < row.size:
        ids = top_ids(row, params.top_k)
    if params.top_p < 1:
        values = row if ids is None else row[ids]
        kept = _nucleus(softmax_weights(values, peak, params.temperature), params.top_p)
        ids = kept if ids is None else ids[kept]
    if params.min_p > 0:
        # At a huge temperature all finite logits stay; the bound itself must be one of them.
        floor = max(peak + params.temperature * math.log(params.min_p), _LOWEST_LOGIT)
        ids = np.flatnonzero(row >= floor) if ids is None else ids[row[ids] >= floor]
    return None if ids is None else np.sort(ids)


def top_ids(row: FloatArray, num: int) -> IdArray:
    """The ids of the `num` largest values of a row [V], largest first, lower ids first if equal.

    Returns [min(num, V)]. The row must not hold NaN.
    """
    if num <= 0:
        return np.empty(0, dtype=np.intp)
    num_groups = row.size // _GROUP_SIZE
    if num <= num_groups:
        # Of the groups' maxima the num-th largest has num values at or above it, so it is
        # a lower bound of what we look for; few other values reach it.
        groups = row[: num_groups * _GROUP_SIZE].reshape(_GROUP_SIZE, num_groups)
        maxima = groups.max(axis=0)
        ids = np.flatnonzero(row >= np.partition(maxima, num_groups - num)[num_groups - num])
    elif num < row.size:
        ids = np.flatnonzero(row >= np.partition(row, row.size - num)[row.size - num])
    else:
        ids = np.arange(row.size)
    return ids[_descending(row[ids])[:num]]


def check_logit(value: float) -> float:
    """Return the largest logit of a row, or raise BackendError if no law has such a one."""
    if not math.isfinite(value):
        raise BackendError(
            f"the largest logit of a row is {value}, not a finite number: the engine's output "
            "is damaged, or every token is masked"
        )
    return float(value)


def softmax_weights(values: FloatArray, peak: float, temperature: float) -> npt.NDArray[np.float64]:
    """exp((values - peak) / temperature): subtracting first keeps a tiny temperature finite."""
    weights = values.astype(np.float64)
    weights -= peak
    with np.errstate(over="ignore"):
        weights /= temperature
    return np.exp(weights, out=weights)


def _nucleus(weights: npt.NDArray[np.float64], top_p: float) -> IdArray:
    """Where in `weights` [N], of which the largest is 1, the nucleus lies: heaviest first."""
    mass_to_keep = top_p * weights.sum()
    places = np.arange(weights.size)
    while True:
        # Entries lighter than the mean of the mass to cut hold less than that mass together,
        # so none of them is in the nucleus. A few such steps leave about twice its size to rank.
        # (Rounding alone can lift that mean above the heaviest entry.)
        floor = min(1.0, (weights.sum() - mass_to_keep) / weights.size)
        heavy = np.flatnonzero(weights >= floor)
        if heavy.size > 0.9 * weights.size:
            break
        places, weights = places[heavy], weights[heavy]
    order = _descending(weights)
    num_kept = int(weights[order].cumsum().searchsorted(mass_to_keep)) + 1
    return places[order[:num_kept]]


def _descending(values: npt.NDArray[np.floating]) -> IdArray:
    return np.argsort(-values, kind="stable")
