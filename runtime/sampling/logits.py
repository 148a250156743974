"""From logits to the law a token is drawn from: bias, top-k, top-p, min-p, temperature.

The law is softmax(logits / temperature), cut in this order:

    top_k    the k largest logits stay
    top_p    of these, renormalised, the fewest most likely ones stay whose mass reaches top_p
    min_p    of these, the ones at least min_p times as likely as the most likely one stay

Equal logits at a cut of top_k or top_p: lower ids stay. At the cut of min_p all of them stay.
The most likely token (of equal ones, the lowest id) survives every cut.

Cutting never sorts a vocabulary: a cheap lower bound singles out a few hundred ids, and only
those are ranked. Where the cut of top_p or min_p lies is found in float32, sums in float64.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engines.errors import BackendError
from runtime.sampling.params import SamplingParams

FloatArray = npt.NDArray[np.float32]
ProbArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.intp]

_GROUP_SIZE = 64
_NUM_BUCKETS = 2048
_LOWEST_LOGIT = float(np.finfo(np.float32).min)
_LOWEST_WEIGHT = 1e-30
# Beyond these temperatures the law is a point, or uniform, to float32.
_LOWEST_SCALE, _HIGHEST_SCALE = 1e-30, 1e30


def without_banned(
    row: FloatArray,
    params: SamplingParams,
    position: int,
    ids_map: npt.NDArray[np.integer] | None = None,
) -> FloatArray:
    """One row [V] with -inf at the ids that have no mass at ``position``; the row itself if none.

    ``ids_map`` int [V] gives the target id of each of the row's ids where it is a reduced draft's.
    A draft that knows banned ids only keeps them: its law may be any.
    """
    if not params.bans_at(position):
        return row
    banned = np.array(params.banned_ids)
    places = banned[banned < row.size] if ids_map is None else np.isin(ids_map, banned)
    allowed = row.copy()
    allowed[places] = -np.inf
    return row if ids_map is not None and allowed.max() == -np.inf else allowed


def adjusted(
    row: FloatArray,
    params: SamplingParams,
    position: int,
    ids_map: npt.NDArray[np.integer] | None = None,
) -> FloatArray:
    """One row [V] with the request's biases added and its bans in force (``without_banned``); the
    row itself where there are none. What hangs on the text is ``TextLaw``'s, and comes before."""
    if params.logit_bias:
        ids, values = zip(*params.bias, strict=True)
        bias = np.zeros(row.size if ids_map is None else int(ids_map.max()) + 1, np.float32)
        known = np.array(ids) < bias.size
        bias[np.array(ids)[known]] = np.array(values, np.float32)[known]
        row = row + (bias if ids_map is None else bias[ids_map])
    return without_banned(row, params, position, ids_map)


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


def law(logits: FloatArray, params: SamplingParams) -> ProbArray:
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
        weights /= weights.sum()
        out[kept] = weights
    return probs.reshape(logits.shape)


def survivors(row: FloatArray, params: SamplingParams) -> IdArray | None:
    """The ids of one row [V] that no cut removes, ascending; None means all of them.

    They are always the first of `top_ids`' ranking: no cut keeps an id and drops a likelier one.
    Raises BackendError as `process` does, when there is something to cut.
    """
    if not params.truncates:
        return None
    peak = check_logit(row.max())
    if 0 < params.top_k < row.size:
        return np.sort(top_survivors(row, params, params.top_k))
    floor = _floor(peak, params)
    if params.top_p == 1:
        return np.flatnonzero(row >= floor)
    ids = _nucleus(row, peak, params)
    return ids if params.min_p == 0 else ids[row[ids] >= floor]


def top_survivors(row: FloatArray, params: SamplingParams, num: int) -> IdArray:
    """The `num` most likely ids of a row [V] that no cut removes, likeliest first: [<= num].

    Cheaper than `survivors`, whose cost grows with what a cut leaves. Raises as it does.
    """
    if not params.truncates:
        return top_ids(row, num)
    peak = check_logit(row.max())
    top_k = params.top_k or row.size
    if params.top_p < 1 and top_k < row.size:
        ids = top_ids(row, top_k)
        pool = row[ids]
    else:
        ids = top_ids(row, min(num, top_k))
        pool = row
    if params.top_p < 1:
        mass = _mass_to_keep(np.exp(_scaled(pool, peak, params)), params)
        before = np.exp(_scaled(row[ids], peak, params)).cumsum(dtype=np.float64)
        ids = ids[: int(before.searchsorted(mass)) + 1]
    ids = ids[:num]
    return ids[row[ids] >= _floor(peak, params)]


def best_survivor(scores: FloatArray, row: FloatArray, params: SamplingParams) -> int:
    """The id of the highest score [V] (of equal ones the lowest) that no cut of `row` removes.

    Overwrites `scores`. A cut keeps the first ids of one ranking, so an id that it removed takes
    all that rank after it along: a few candidates are tested, and no vocabulary is cut. Raises
    as `survivors` does.
    """
    peak = check_logit(row.max())
    if 0 < params.top_k < row.size:
        ids = np.sort(top_survivors(row, params, params.top_k))
        return int(ids[scores[ids].argmax()])
    floor = _floor(peak, params)
    weights = np.exp(_scaled(row, peak, params)) if params.top_p < 1 else None
    while True:
        best = int(scores.argmax())
        value = row[best]
        if value < floor:
            scores[row < floor] = -np.inf
        elif weights is None or _reaches(row, weights, best, params):
            return best
        else:
            scores[row < value] = -np.inf
            scores[best:][row[best:] == value] = -np.inf


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


def softmax_weights(values: FloatArray, peak: float, temperature: float) -> ProbArray:
    """exp((values - peak) / temperature): subtracting first keeps a tiny temperature finite."""
    weights = values.astype(np.float64)
    weights -= peak
    with np.errstate(over="ignore"):
        weights /= temperature
    return np.exp(weights, out=weights)


def _scaled(values: FloatArray, peak: float, params: SamplingParams) -> FloatArray:
    """(values - peak) / temperature, float32."""
    scaled = values - np.float32(peak)
    with np.errstate(over="ignore"):
        scaled /= np.float32(min(max(params.temperature, _LOWEST_SCALE), _HIGHEST_SCALE))
    return scaled


def _floor(peak: float, params: SamplingParams) -> float:
    """The lowest logit that min_p keeps. At a huge temperature all finite logits stay."""
    if params.min_p == 0:
        return -math.inf
    return max(peak + params.temperature * math.log(params.min_p), _LOWEST_LOGIT)


def _mass_to_keep(weights: FloatArray, params: SamplingParams) -> float:
    return params.top_p * float(weights.sum(dtype=np.float64))


def _reaches(row: FloatArray, weights: FloatArray, token: int, params: SamplingParams) -> bool:
    """True when `token` is in the nucleus: those ranked before it do not hold the mass yet."""
    value = row[token]
    heavier = float((weights * (row > value)).sum(dtype=np.float64))
    ties = int(np.count_nonzero(row[:token] == value))
    return heavier + ties * float(weights[token]) < _mass_to_keep(weights, params)


def _nucleus(row: FloatArray, peak: float, params: SamplingParams) -> IdArray:
    """The ids of the nucleus, ascending.

    The ids are thrown into buckets of equal width in logit; only the bucket that the cut runs
    through is ranked.
    """
    scaled = _scaled(row, peak, params)
    weights = np.exp(scaled)
    mass = _mass_to_keep(weights, params)
    # Ids lighter than the mean of the mass to cut hold less than that mass together, so none of
    # them is in the nucleus.
    mean_cut = mass * (1 / params.top_p - 1) / row.size
    lowest = math.log(min(max(mean_cut, _LOWEST_WEIGHT), 0.5))
    ids = np.flatnonzero(scaled >= lowest)
    weights_64 = weights[ids].astype(np.float64)
    buckets = (scaled[ids] * np.float32(_NUM_BUCKETS / lowest)).astype(np.intp)
    filled = np.bincount(buckets, weights_64).cumsum()
    cut = int(filled.searchsorted(mass))
    kept = buckets < cut
    inside = np.flatnonzero(buckets == cut)
    inside = inside[_descending(row[ids[inside]])]
    missing = mass - (filled[cut - 1] if cut > 0 else 0.0)
    num_kept = int(weights_64[inside].cumsum().searchsorted(missing)) + 1
    kept[inside[:num_kept]] = True
    return ids.compress(kept)


def _descending(values: npt.NDArray[np.floating]) -> IdArray:
    return np.argsort(-values, kind="stable")
