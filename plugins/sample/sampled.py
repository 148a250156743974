"""Drafting a token with a temperature, in numpy: the meaning that the kernel is tested against.

All ids that come out are target ids. `ids_map` [Vd] names the target id of each draft id, in any
order and no id twice; None where they are the same. Of equal values the lower draft id ranks first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plugins.law.reference import (
    FloatArray,
    IdArray,
    LawParams,
    ProbArray,
    Sampling,
    adjusted,
    is_damaged,
    ranking,
    survivors,
)
from plugins.noise.reference import Purpose, gumbel, uniform
from plugins.verify.sampled import MAX_SCALE, Status

IdsMap = npt.NDArray[np.integer]

MAX_SUPPORT = 128
"""Most ids of a law that a token is drawn from."""
MAX_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Saguaro sampling: the `top` likeliest ids of a law lose all but `scale` of their mass.

    top    how many candidates the next round can prepare at a place where it rejects; 0: none
    scale  C, in [0, 1]; 1 leaves the law as it is
    """

    top: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One drafted token; by default that of a row whose logits are no law.

    candidates      int64 [<= F], likely bonus tokens, likeliest first
    q_ids, q_probs  int32 [<= M], float64 [<= M], the law that the token was drawn from; empty under
                    the coupled rule, which needs none
    """

    status: Status = Status.DAMAGED
    token: int = 0
    candidates: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    q_ids: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    q_probs: ProbArray = field(default_factory=lambda: np.empty(0))


def coupled(
    logits: FloatArray,
    sampling: Sampling,
    position: int,
    num_candidates: int,
    exclude: int | None = None,
    ids_map: IdsMap | None = None,
) -> Drawn:
    """The coupled rule's token: argmax over the ids that no cut removes of l + T * g.

    g is the noise of the target ids, so the draft takes the target's own token wherever the two
    laws agree on it. The candidates go by the same values; ids that the parameters cut come last,
    by their logits, since the target may keep them. At T = 0 all goes by logits.

    Args:
        logits: the draft's, float32 [Vd].
        sampling: the sequence's; its edits and banned ids are in draft ids, and its
            `first_position` is not read.
        position: of the token in its sequence, from 0.
        num_candidates: F.
        exclude: a target id known not to be the bonus token: the one that was drafted here.
    """
    params = sampling.params
    row = adjusted(logits, params, sampling.edits, banned=sampling.banned_at(position))
    if is_damaged(row):
        return Drawn()
    targets = _targets(row.size, ids_map)
    is_cut = np.ones(row.size, bool)
    is_cut[survivors(row, params)] = False
    values = row
    if params.temperature > 0:
        noise = gumbel(sampling.seed, position, int(targets.max()) + 1)[targets]
        scores = row + np.float32(min(params.temperature, MAX_SCALE)) * noise
        values = np.where(is_cut, row, scores)
    order = targets[np.lexsort((np.arange(row.size), -values, is_cut))]
    return Drawn(
        status=Status.DONE,
        token=int(order[0]),
        candidates=_candidates(order, num_candidates, exclude),
    )


def ratio(
    logits: FloatArray,
    sampling: Sampling,
    position: int,
    num_candidates: int,
    exclude: int | None = None,
    ids_map: IdsMap | None = None,
    max_support: int = MAX_SUPPORT,
    reshaping: Reshaping | None = None,
) -> Drawn:
    """The ratio rule's token: drawn from the draft's law, cut to its likeliest ids.

    The law is what the parameters leave, of that the `max_support` likeliest ids, and then what
    `reshaping` makes of it. It is drawn from by inverse CDF, likeliest id first, and is handed on:
    acceptance divides by it, and the residual subtracts it. The candidates go by logits, since the
    draws of draft and target share nothing.

    Args:
        logits, sampling, position, num_candidates, exclude: as in `coupled`.
        max_support: M, at most MAX_SUPPORT.
    """
    banned = sampling.banned_at(position)
    row = adjusted(logits, sampling.params, sampling.edits, banned=banned)
    if is_damaged(row):
        return Drawn()
    targets = _targets(row.size, ids_map)
    order = ranking(row)
    ids, probs = _law(row, order, sampling.params, max_support)
    if reshaping is not None:
        probs = saguaro(probs, reshaping.top, reshaping.scale)
        ids, probs = ids[probs > 0], probs[probs > 0]
    cumulative = probs.cumsum()
    u = uniform(sampling.seed, position, Purpose.DRAFT)
    drawn = ids[cumulative.searchsorted(u * cumulative[-1], side="right")]
    return Drawn(
        status=Status.DONE,
        token=int(targets[drawn]),
        candidates=_candidates(targets[order], num_candidates, exclude),
        q_ids=targets[ids].astype(np.int32),
        q_probs=probs,
    )


def saguaro(probs: ProbArray, top: int, scale: float) -> ProbArray:
    """sigma_{F,C} of the paper (arXiv 2603.03251, definition 14): float64 [N] -> float64 [N].

    The F = `top` likeliest ids keep C = `scale` of their mass, and all is normalised again. The
    candidates of the next round thereby become rarer in q, so that where a token is rejected the
    residual max(0, p - q) falls on them: more hits, for fewer accepted tokens.

    `probs` is a law, likeliest id first. It is returned as it is where the whole support lies
    among the first `top`: scaling would change nothing, and C = 0 would leave nothing.
    """
    if top <= 0 or scale == 1 or top >= probs.size:
        return probs
    reshaped = probs.copy()
    reshaped[:top] *= scale
    return np.asarray(reshaped / reshaped.sum())


def _law(
    row: FloatArray, order: IdArray, params: LawParams, max_support: int
) -> tuple[IdArray, ProbArray]:
    """Draft ids and probabilities, likeliest first; no cut keeps an id and drops a likelier one."""
    if params.temperature == 0:
        return order[:1], np.ones(1)
    ids = order[: min(max_support, survivors(row, params).size)]
    with np.errstate(over="ignore"):
        weights = np.exp((row[ids].astype(np.float64) - row[ids[0]]) / params.temperature)
    ids, weights = ids[weights > 0], weights[weights > 0]
    return ids, weights / weights.sum()


def _candidates(order: IdArray, num: int, exclude: int | None) -> npt.NDArray[np.int64]:
    ids = order if exclude is None else order[order != exclude]
    return ids[:num].astype(np.int64)


def _targets(size: int, ids_map: IdsMap | None) -> IdArray:
    return np.arange(size) if ids_map is None else np.asarray(ids_map, np.intp)
